"""A ``LightningModule`` as our loop trains it: its steps, with what Lightning calls around each batch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .... import PacelineError, TrainModule
from ....trainer.batch_hooks import BATCH_HOOKS
from ....trainer.module_parts.recorded import HParams
from . import schedulers
from .data import loaded
from .hooks import Hooks, overrides
from .kept_gradients import KeptGradients
from .namespace import share
from .optimizer import LightningOptimizer
from .partial_weights import load_weights_of, weights_of
from .session import Session

_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
_SEE_GRADIENTS = ("on_train_batch_end", "on_before_zero_grad")
"""Hooks in which Lightning code reads the gradients of the last update."""


class Adapter(TrainModule):
    """Trains a ``LightningModule``; ``adapt`` makes one with the methods that the user has written.

    Args:
        module: The user's.
        session: What this trainer knows of the module, its callbacks and their hooks.

    Attributes:
        configs: The schedulers of the fit, and when they step.
        ends: Whether ``on_train_batch_start`` returned -1: the epoch ends without this batch.
    """

    _own = frozenset(
        (
            *("automatic_optimization", "configs", "batches", "micro_batch", "ends", "went_backward"),
            *("frozen", "kept_gradients", "last_idx", "_under_way", "_outputs", "_trainer", "_logger"),
            *("_wanted_by", "_configured"),
        )
    )
    lightning: Any
    session: Session
    hooks: Hooks
    frozen: list[Tensor]

    def __init__(self, module: nn.Module, session: Session) -> None:
        vars(self)["lightning"] = module
        mode = module.training  # which a new module sets
        super().__init__()
        module.training = mode
        share(module, self)
        vars(self).update(session=session, hooks=session.hooks)
        self.automatic_optimization = bool(getattr(module, "automatic_optimization", True))
        self.configs: list[schedulers.LRSchedulerConfig] = []
        self.batches: list[Any] = []
        self.micro_batch = 0
        self.ends = self.went_backward = False
        self.frozen = []
        self.kept_gradients = KeptGradients()
        self.last_idx = 0
        self._under_way: tuple[Any, int] | None = None
        self._outputs: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Our attributes are no parts of the user's module, which may have some of the same names."""
        if name in self._own:
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def training(self) -> bool:  # type: ignore[override]
        """The mode of the user's module."""
        return bool(vars(self)["lightning"].training)

    @training.setter
    def training(self, mode: bool) -> None:
        vars(self)["lightning"].training = mode

    def train(self, mode: bool = True) -> Any:
        stage = self.session.stage_name
        if mode or not overrides(self.lightning, f"on_{stage}_model_eval", *self.session.bases):
            self.lightning.train(mode)
        return self

    @property
    def hparams(self) -> HParams:
        """The arguments of the module's constructor."""
        return HParams(self.lightning.recorded_arguments)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return weights_of(self.lightning, self.frozen, *args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return load_weights_of(self.lightning, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {"lightning": self.lightning}

    def __deepcopy__(self, memo: dict[int, Any]) -> Adapter:
        """An adapter of a copy of the user's module, whose hooks no callback of the run hears of."""
        module = copy.deepcopy(self.lightning, memo)
        session = module._paceline_session = self.session.for_copy(module)
        copied = session.adapter = adapt(module, session)
        return copied

    # -- data ----------------------------------------------------------------------------------

    def prepare_data(self) -> None:
        """The module's own, on one rank of each machine."""
        self.lightning.prepare_data()

    # -- one batch of training -----------------------------------------------------------------

    def begin_step(self, batches: list[Any]) -> None:
        """An optimizer step begins, with these micro-batches."""
        self.batches, self.micro_batch, self.ends = batches, 0, False
        self.last_idx = self.session.batch_idx + len(batches) - 1
        if not self.hooks.has("on_before_zero_grad"):
            self.kept_gradients.clear()

    def begin_batch(self, batch: Any, batch_idx: int) -> bool:
        """Call ``on_train_batch_start``, where it was not called yet; False where it ends the epoch."""
        if self._under_way is not None and self._under_way[1] == batch_idx:
            return not self.ends
        self.finish_batch()
        if batch_idx == 0 and self.session.ends_early:  # on_train_epoch_start has stopped the run
            self.session.cancel_step()
            return False
        self._under_way, self._outputs = (batch, batch_idx), None
        if self.hooks.call("on_train_batch_start", batch, batch_idx) == -1:
            self._under_way = None
            self.session.cancel_step(batch_idx + 1)
        return not self.ends

    def finish_batch(self) -> None:
        """Call ``on_train_batch_end``, where a batch is under way."""
        if self._under_way is not None:
            batch, batch_idx = self._under_way
            if self.hooks.has("on_train_batch_end"):
                self.hooks.call("on_train_batch_end", self._shown(self._outputs), batch, batch_idx)
            self._under_way = self._outputs = None

    @property
    def batch_under_way(self) -> int | None:
        """The number of the batch between its hooks, from 0; None outside of them."""
        return None if self._under_way is None else self._under_way[1]

    @property
    def in_last_batch(self) -> bool:
        """Whether the batch under way is the last of its step."""
        return self._under_way is None or self._under_way[1] >= self.last_idx

    def _shown(self, outputs: Any) -> dict[str, Any]:
        """A step's outputs as ``on_train_batch_end`` gets them: detached, the loss as it is accumulated."""
        if outputs is None:
            return {}
        found = dict(outputs) if isinstance(outputs, Mapping) else {"loss": outputs}
        found = {k: v.detach() if isinstance(v, Tensor) else v for k, v in found.items()}
        if isinstance(found.get("loss"), Tensor) and self.automatic_optimization:
            found["loss"] = found["loss"] / self.session.accumulate_grad_batches
        return found

    def parallelize(self, mesh: Any) -> None:
        """The user's own plan, which Lightning modules have none of; else that of a Hugging Face model."""
        own = getattr(self.lightning, "parallelize", None)
        if own is None:
            super().parallelize(mesh)
        else:
            own(mesh)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self._is_padding():
            return _loss(self._call_step("training_step", batch, batch_idx))
        if self.ends or not self.begin_batch(batch, batch_idx):
            return None
        self._outputs = self._call_step("training_step", batch, batch_idx)
        return _loss(self._outputs) if self.automatic_optimization else None

    def _is_padding(self) -> bool:
        """Whether the batch is for the other ranks' sake, or the model's: nothing of it is kept."""
        return self._logger is not None and self._logger.current is not self.session.store

    def _call_step(self, name: str, batch: Any, batch_idx: int, dataloader_idx: int | None = None) -> Any:
        given = {"batch_idx": batch_idx, "dataloader_idx": dataloader_idx}
        with self.session.numbers_of_a_step():
            return getattr(self.lightning, name)(batch, *(given[wanted] for wanted in self._wanted(name)))

    def _wanted(self, name: str) -> tuple[str, ...]:
        """What a step takes beside the batch."""
        known = vars(self).setdefault("_wanted_by", {})
        if name not in known:
            parameters = list(inspect.signature(getattr(self.lightning, name)).parameters.values())
            several = name != "training_step" and self._has_several()
            several = several or any(p.name == "dataloader_idx" for p in parameters)
            names = ("batch_idx", "dataloader_idx") if several else ("batch_idx",)
            many = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
            known[name] = names if many else names[: max(len(parameters) - 1, 0)]
        return tuple(known[name])

    def _has_several(self) -> bool:
        return self._logger is not None and bool(self._logger.current.loader_name)

    # -- gradients and updates -----------------------------------------------------------------

    @property
    def optimizer(self) -> Any:
        """The one optimizer of automatic optimization."""
        return self.trainer.optimizers[0]

    def _with_backward_hooks(self, loss: Tensor) -> None:
        """``backward`` of the loop, where any hook of it is in use."""
        lightning, hooks = self.lightning, self.hooks
        if self.micro_batch == 0:
            hooks.call("on_before_zero_grad", self.optimizer)
            cleared = LightningOptimizer(self.optimizer)
            lightning.optimizer_zero_grad(self.session.current_epoch, self._batch_idx, cleared)
            if not cleared.was_cleared:
                raise PacelineError(
                    "optimizer_zero_grad did not clear the gradients, and each step begins without any",
                    code="override-incomplete",
                    fix="optimizer.zero_grad() in it, and Trainer(accumulate_grad_batches=n) to add up "
                    "the gradients of n batches",
                )
            self.kept_gradients.clear()
        self.micro_batch += 1
        hooks.call("on_before_backward", loss)
        self.went_backward = False
        lightning.backward(loss)
        strategy = self.trainer.strategy
        if not self.went_backward and (strategy.precision.scales or strategy.environment.world_size > 1):
            raise PacelineError(
                "backward did not call super().backward(loss), which scales the loss and reduces gradients",
                code="override-incomplete",
                got=f"strategy={strategy.name!r}, precision={strategy.precision.name!r}",
                fix="super().backward(loss) in the place of loss.backward()",
            )
        hooks.call("on_after_backward")

    @property
    def _batch_idx(self) -> int:
        return self.batch_under_way or 0

    def go_backward(self, loss: Tensor, **options: Any) -> None:
        """``loss.backward()`` as the run does it."""
        self.went_backward = True
        run = self.trainer
        target = run.strategy if self.automatic_optimization else run.loop.manual_optimization
        target.backward(loss, **options)

    def _with_own_update(self, optimizer: Any, closure: Any) -> None:
        """``optimizer_step`` of the loop, where the user has one."""
        batch_idx = self.session.batch_idx
        if not self.begin_batch(self.batches[-1], batch_idx):
            closure()
            return
        handed = LightningOptimizer(optimizer)
        self.lightning.optimizer_step(self.session.current_epoch, batch_idx, handed, closure)
        self.session.count_update()

    def configure_optimizers(self) -> Any:
        optimizers, self.configs = schedulers.read(self.lightning.configure_optimizers())
        epochs = self.session.current_epoch + bool(self.session.ours.counters.samples_in_epoch)
        for callback in self.session.callbacks:
            callback.resumed(self.lightning, optimizers, epochs)
        self._freeze_others(optimizers)
        if self.automatic_optimization and any(map(self.hooks.has, _SEE_GRADIENTS)):
            for optimizer in optimizers:
                self.kept_gradients.watch(optimizer)
        if self.automatic_optimization and len(optimizers) > 1:
            return optimizers  # the error is the loop's
        return schedulers.as_ours(optimizers, self.configs, self.session.values.full_name)

    def _freeze_others(self, optimizers: list[Any]) -> None:
        """Let our loop accept parameters that are in no optimizer, which Lightning trains on without.

        On one device they get gradients all the same; on several they stay frozen for the fit.
        """
        held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        others = {n: p for n, p in self.named_parameters() if p.requires_grad and id(p) not in held}
        if not others or not held:
            return
        vars(self)["frozen"] = list(others.values())
        for parameter in self.frozen:
            parameter.requires_grad_(False)
        if self.session.ours.world_size > 1:
            names = ", ".join([*others][:4]) + (" ..." if len(others) > 4 else "")
            self.session.log_line(
                f"{len(others)} parameters in no optimizer are frozen in this fit: {names}"
            )

    def unfreeze_others(self) -> None:
        """Take that back: the fit is over."""
        for parameter in self.frozen:
            parameter.requires_grad_(True)
        self.frozen.clear()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        if self._under_way is not None:  # else the step is counted: ours asks once an epoch
            self.session.count_update()
        for config in self.configs:
            if config.scheduler is scheduler and not config.reduce_on_plateau:
                in_epoch, epoch = self.session.batch_idx, self.session.current_epoch + 1
                by_epoch = self.session.is_last_batch and config.due("epoch", epoch)
                if config.due("step", in_epoch) or by_epoch:
                    self.lightning.lr_scheduler_step(scheduler, None)

    # -- one batch of an evaluation ------------------------------------------------------------

    def _evaluate(self, stage: str, batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
        name = f"{stage}_step"
        if self._is_padding():
            return self._call_step(name, batch, batch_idx, dataloader_idx)
        more = (dataloader_idx,) if self._has_several() else ()
        self.hooks.call(f"on_{stage}_batch_start", batch, batch_idx, *more)
        outputs = self._call_step(name, batch, batch_idx, dataloader_idx)
        self.hooks.call(f"on_{stage}_batch_end", outputs, batch, batch_idx, *more)
        self.session.end_evaluation_batch(dataloader_idx)
        return outputs

    def _validate_batch(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self._evaluate("validation", batch, batch_idx, dataloader_idx)

    def _test_batch(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self._evaluate("test", batch, batch_idx, dataloader_idx)

    def _predict_batch(self, batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
        output = self._evaluate("predict", batch, batch_idx, dataloader_idx)
        self.session.several = self._has_several()
        return (dataloader_idx, output) if self._has_several() else output


def _loss(outputs: Any) -> Any:
    """What is trained on, of what ``training_step`` returned; None skips the batch.

    Raises:
        PacelineError: for a mapping without a loss.
    """
    if not isinstance(outputs, Mapping):
        return outputs
    if "loss" not in outputs:
        keys, fix = f"keys {list(outputs)}", "name the value to train on 'loss'"
        what = "training_step returned a mapping without 'loss'"
        raise PacelineError(what, code="loss-not-usable", got=keys, fix=fix)
    return outputs["loss"]


def adapt(module: Any, session: Session) -> Adapter:
    """An adapter of the user's class's name, with those methods that the user has written."""
    bases, hooks = session.bases, session.hooks
    methods: dict[str, Any] = {
        "__module__": type(module).__module__,
        "__qualname__": type(module).__qualname__,
    }

    def written(name: str) -> bool:
        return overrides(module, name, *bases)

    evaluations = {
        "validation": Adapter._validate_batch,
        "test": Adapter._test_batch,
        "predict": Adapter._predict_batch,
    }
    for stage in evaluations:
        if written(f"{stage}_step") or (stage == "predict" and written("forward")):
            methods[f"{stage}_step"] = evaluations[stage]
    for name in (*_LOADERS, *BATCH_HOOKS):
        if written(name):
            methods[name] = _passing(name)
    around = ("on_before_zero_grad", "on_before_backward", "on_after_backward")
    if any(map(hooks.has, around)) or written("backward") or written("optimizer_zero_grad"):
        methods["backward"] = Adapter._with_backward_hooks
    if written("optimizer_step"):
        methods["optimizer_step"] = Adapter._with_own_update
    kind = type(type(module).__name__, (Adapter,), methods)
    made: Adapter = kind(module, session)
    return made


def _passing(name: str) -> Any:
    def passed(self: Adapter, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.lightning, name)(*args, **kwargs)

    def load(self: Adapter) -> Any:
        return loaded(self.session.trainer, name, getattr(self.lightning, name))

    found = load if name in _LOADERS else passed
    found.__name__ = name
    return found
