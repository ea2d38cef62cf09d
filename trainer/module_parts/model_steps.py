"""The steps of a model that exists already: what ``TrainModule.of`` gives."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from ...errors import PacelineError

TARGETS = ("labels", "label", "targets", "target")
"""The keys of a mapping that may hold a batch's targets."""
OWN_NAMES = frozenset({"loss", "weight"})
"""What a step returns besides metrics."""
_BATCHES = "(inputs, targets), or a mapping with " + " or ".join(map(repr, TARGETS))


def takes_module(make: Callable[..., Any]) -> bool:
    """Whether what makes an optimizer is given a module: its first argument is called so."""
    return next(iter(inspect.signature(make).parameters), None) == "module"


def made_optimizer(make: Callable[..., Any], module: nn.Module) -> Any:
    """An optimizer of the parameters to train; of the module, where that is what it is given."""
    return make(module if takes_module(make) else [p for p in module.parameters() if p.requires_grad])


class ModelSteps(nn.Module):
    """Steps of a model with a loss, an optimizer and metrics, to be mixed into ``TrainModule``.

    Args:
        model: As ``TrainModule.of`` takes it; so are the others.
        loss: See there.
        optimizer: See there.
        scheduler: See there.
        metrics: See there.
        weight: See there.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        optimizer: Callable[..., Any] | None = None,
        scheduler: Any = None,
        metrics: Mapping[str, Any] | None = None,
        weight: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        taken = OWN_NAMES & set(metrics or {})
        if taken:
            raise PacelineError(
                "TrainModule.of: a metric has the name of a value that every step has",
                code="reserved-name",
                got=", ".join(sorted(taken)),
                fix="give the metric another name",
            )
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.weight = weight
        self.functions: dict[str, Callable[..., Any]] = {}
        objects: dict[str, nn.Module] = {}
        for name, metric in (metrics or {}).items():
            if hasattr(metric, "update") and isinstance(metric, nn.Module):  # of torchmetrics: it counts
                objects |= {f"{phase}:{name}": copy.deepcopy(metric) for phase in ("train", "val", "test")}
            else:
                self.functions[name] = metric
        self.metrics = nn.ModuleDict(objects) if objects else None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the model returns."""
        return self.model(*inputs, **named)

    def training_step(self, batch: Any) -> dict[str, Any]:
        """The loss and the metrics of a batch."""
        return self._step(batch, "train")

    def validation_step(self, batch: Any) -> dict[str, Any]:
        """As ``training_step``."""
        return self._step(batch, "val")

    def test_step(self, batch: Any) -> dict[str, Any]:
        """As ``training_step``."""
        return self._step(batch, "test")

    def predict_step(self, batch: Any) -> Any:
        """The predictions for a batch; targets in it are not used."""
        inputs, _ = split_batch(batch)
        return _predictions(self._call(inputs))

    def configure_optimizers(self) -> Any:
        """The optimizer, and the scheduler where one was given."""
        if self.optimizer is None:
            raise PacelineError(
                "TrainModule.of: fit needs an optimizer",
                code="missing-argument",
                fix="TrainModule.of(model, ..., optimizer=functools.partial(torch.optim.AdamW, lr=1e-3))",
            )
        optimizer = made_optimizer(self.optimizer, self)
        if self.scheduler is None:
            return optimizer
        schedule = self.scheduler(optimizer) if callable(self.scheduler) else self.scheduler
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _step(self, batch: Any, phase: str) -> dict[str, Any]:
        inputs, targets = split_batch(batch)
        if self.loss is None:
            outputs = self.model(**batch) if isinstance(batch, Mapping) else self.model(*_as_tuple(batch))
            loss = _own_loss(outputs, self.model)
        elif targets is None:
            raise PacelineError(
                "TrainModule.of: the batch has no targets for the loss",
                code="loss-not-usable",
                got=f"keys {list(batch)}" if isinstance(batch, Mapping) else type(batch).__name__,
                allowed=_BATCHES,
                fix="have the dataset give pairs, or write a TrainModule with a training_step",
            )
        else:
            outputs = self._call(inputs)
            loss = self.loss(_predictions(outputs), targets)
        values: dict[str, Any] = {"loss": loss}
        if self.weight is not None:
            values["weight"] = self.weight(batch)
        if self.functions or self.metrics is not None:
            self._measure(values, _predictions(outputs).detach(), targets, phase)
        return values

    def _measure(self, values: dict[str, Any], predictions: Tensor, targets: Any, phase: str) -> None:
        for name, function in self.functions.items():
            values[name] = function(predictions, targets)
        for key, metric in (self.metrics or {}).items():
            name = key.removeprefix(f"{phase}:")
            if name != key:
                cast(Any, metric).update(predictions, targets)
                cast(Any, self).log(name, metric)

    def _call(self, inputs: Any) -> Any:
        return self.model(**inputs) if isinstance(inputs, Mapping) else self.model(*_as_tuple(inputs))


def split_batch(batch: Any) -> tuple[Any, Any]:
    """The inputs of a batch, and its targets: None where it has none.

    Args:
        batch: A sequence whose last one of several parts is the targets, a mapping with one of ``TARGETS``,
            or inputs alone.
    """
    if isinstance(batch, Mapping):
        key = next((key for key in TARGETS if key in batch), None)
        return {k: v for k, v in batch.items() if k != key}, None if key is None else batch[key]
    if isinstance(batch, Sequence) and len(batch) > 1:
        return batch[:-1], batch[-1]
    return batch, None


def _as_tuple(inputs: Any) -> Sequence[Any]:
    return inputs if isinstance(inputs, Sequence) else (inputs,)


def _predictions(outputs: Any) -> Any:
    """The logits of a transformers output, anything else as it is."""
    return getattr(outputs, "logits", outputs)


def _own_loss(outputs: Any, model: nn.Module) -> Tensor:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None and isinstance(outputs, Tensor) and outputs.numel() == 1:
        loss = outputs
    if loss is None:
        raise PacelineError(
            f"TrainModule.of: {type(model).__name__} returned no loss, and none was given",
            code="loss-not-usable",
            got=f"an output of {type(outputs).__name__}",
            allowed="an output with .loss, a mapping with 'loss', or a scalar tensor",
            fix="give TrainModule.of a loss=, or the batch labels",
        )
    return loss  # type: ignore[no-any-return]
