"""What probes look at: a fit that has ended, its module before and after, its data, and copies of them."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...callbacks import Callback, Checks
from ...callbacks.checks.seen import Seen
from ...callbacks.checks.tensor_facts import tensors_in
from ...trainer.rng import untouched
from ...trainer.utils.nested import map_tensors
from .not_here import NotHere
from .steps import Step, take_step
from .tables import Table, read_table

_BATCHES = 4
_MOST_SAMPLES = 4000
_SECONDS_OF_READING = 6.0


class Recorder(Callback):
    """Keeps what probes need of a fit: its data, some batches, its losses, what each validation logged."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.first: Any = None
        self.loaders: dict[str, Any] = {}
        self.optimizers: list[Any] = []
        self.train_batches: list[Any] = []
        self.val_batches: dict[int, Any] = {}
        self.losses: list[float] = []
        self.validations: list[dict[str, float]] = []
        self.logged: list[dict[str, float]] = []

    def on_fit_start(self, trainer: Any) -> None:
        self.begun = time.monotonic()
        try:
            self.first = copy.deepcopy(trainer.module)
        except Exception as error:  # of a part that cannot be copied
            self.first = error
        self.loaders = dict(trainer.loop.data)
        self.optimizers = list(trainer.optimizers)

    def on_step_start(self, trainer: Any, batches: list[Any]) -> None:
        for batch in batches:
            if len(self.train_batches) < _BATCHES:
                self.train_batches.append(_copied(batch))

    def on_step_end(self, trainer: Any, outputs: list[Any]) -> None:
        for output in outputs:
            loss = output.get("loss") if isinstance(output, dict) else output
            if isinstance(loss, Tensor) and loss.numel() == 1 and len(self.losses) < 5000:
                self.losses.append(float(loss.detach()))
        if len(self.logged) < 100:
            self.logged.append({n: v for n, v in trainer.metrics.items() if n.startswith("train/")})

    def on_validation_step_end(self, trainer: Any, output: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx < _BATCHES and batch_idx not in self.val_batches:
            self.val_batches[batch_idx] = _copied(batch)

    def on_validation_end(self, trainer: Any) -> None:
        if trainer.loop.is_fit_validation:
            self.validations.append({n: v for n, v in trainer.metrics.items() if n.startswith("val/")})


def _copied(batch: Any) -> Any:
    return map_tensors(batch, lambda one: one.detach().clone())


@dataclass
class Subject:
    """A program that has trained for a short time.

    Attributes:
        trainer: Of the short fit.
        module: As it was trained.
        checks: The callback, with what it has seen.
        record: Of the fit.
        data: The training and validation data and the DataModule as ``fit`` took them.
        deadline: When probes are to end, on the clock of ``time.monotonic``.
    """

    trainer: Any
    module: Any
    checks: Checks
    record: Recorder
    data: tuple[Any, Any, Any]
    deadline: float

    @property
    def first(self) -> Any:
        """The module from before the first step; the error where it cannot be copied."""
        return self.record.first

    @property
    def seen(self) -> Seen:
        """What the callback has seen of the fit."""
        seen = self.checks.seen
        if seen is None:
            raise LookupError("the callback has seen nothing")
        return seen

    @property
    def loaders(self) -> dict[str, Any]:
        """The data of the fit: ``"train"``, ``"val"`` or ``"val/NAME"``."""
        return self.record.loaders

    @property
    def val_loader(self) -> Any:
        """The first validation data; None where there is none."""
        return next((one for name, one in self.loaders.items() if name.startswith("val")), None)

    @property
    def is_cut(self) -> bool:
        """Whether the fit was ended before its own end."""
        return "max_time" in (self.trainer.stop_reason or "")

    @property
    def train_batches(self) -> list[Any]:
        """The first training batches, as steps got them."""
        return self.record.train_batches

    @property
    def val_batches(self) -> list[Any]:
        """The first validation batches, likewise."""
        return [one for _, one in sorted(self.record.val_batches.items())]

    @property
    def seconds_left(self) -> float:
        """Until probes are to end."""
        return self.deadline - time.monotonic()

    # -- modules -----------------------------------------------------------------------------------

    def copy(self, trained: bool = True) -> Any:
        """A copy of the module: as it was trained, or from before. On the device of the fit."""
        source = self.module if trained else self.first
        if isinstance(source, Exception):
            raise LookupError(f"the module cannot be copied: {source}")
        return copy.deepcopy(source).to(self.module.device)

    def trained_weights(self, module: Any) -> list[nn.Parameter]:
        """The parameters of a copy that optimizers of the fit train."""
        optimized = {name for name, facts in self.seen.parameters.items() if facts.optimized}
        return [p for name, p in module.named_parameters() if p.requires_grad and name in optimized]

    def step(self, module: Any, batch: Any, validation: bool = False, seed: int = 1) -> Step:
        """A training or validation step of a module by itself.

        Raises:
            LookupError: where the module has no such step, or takes its own steps in training.
        """
        from ...trainer.module import is_overridden

        method = "validation_step" if validation else "training_step"
        if not is_overridden(module, method):
            raise NotHere(f"there is no {method}")
        if not validation and not module.automatic_optimization:
            raise LookupError("training_step takes its own steps")
        return take_step(module, batch, method=method, seed=seed, trainer=self.trainer)

    def evaluated(self, module: Any, batch: Any, seed: int = 1) -> Step:
        """A step in eval mode and without gradients: of validation where there is one, else of training.

        Raises:
            LookupError: where neither can be called by itself.
        """
        from ...trainer.module import is_overridden

        module.eval()
        with torch.no_grad():
            return self.step(module, batch, is_overridden(module, "validation_step"), seed)

    # -- rows -------------------------------------------------------------------------------------

    @property
    def target_places(self) -> frozenset[str]:
        """Places in a batch whose tensors losses took as their target."""
        noted = self.seen.batches.get("train", []) + self.seen.batches.get("val", [])
        return frozenset(place for one in noted for place in one.targets)

    def table(self, name: str = "train") -> Table:
        """What the loader of training or validation gives in an epoch, as far as time allows.

        Raises:
            LookupError: where there is no such data, or it can be read once only.
        """
        loader = self.loaders.get("train") if name == "train" else self.val_loader
        if loader is None:
            raise NotHere(f"there is no {name} data")
        if isinstance(loader, Iterator):
            raise LookupError(f"the {name} data can be read once only")
        if name not in self._tables:
            seconds = min(_SECONDS_OF_READING, self.seconds_left)
            self._tables[name] = read_table(loader, self.target_places, seconds)
        return self._tables[name]

    @cached_property
    def _tables(self) -> dict[str, Table]:
        return {}

    # -- samples -----------------------------------------------------------------------------------

    def dataset(self, name: str = "train") -> Dataset[Any] | None:
        """The map-style dataset of a loader; None where there is none."""
        loader = self.loaders.get("train") if name == "train" else self.val_loader
        dataset = getattr(loader, "dataset", None)
        if not isinstance(loader, DataLoader) or isinstance(dataset, IterableDataset):
            return None
        return dataset if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else None

    @cached_property
    def _read(self) -> dict[str, list[tuple[int, dict[str, Any]]]]:
        return {}

    def samples(self, name: str = "train") -> list[tuple[int, dict[str, Any]]]:
        """Samples of a dataset, spread over it: (index, tensors by their place), as many as time allows."""
        if name not in self._read:
            self._read[name] = list(self._samples_of(self.dataset(name)))
        return self._read[name]

    def _samples_of(self, dataset: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        if dataset is None or not len(dataset):
            return
        until = time.monotonic() + min(_SECONDS_OF_READING, self.seconds_left)
        count = min(len(dataset), _MOST_SAMPLES)
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:count].tolist()
        with untouched(torch.device("cpu")):
            for index in order:
                if time.monotonic() > until:
                    return
                yield index, parts_of(dataset[index])

    def read_again(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """The same samples, read again."""
        return list(self._samples_of(self.dataset(name)))


def parts_of(sample: Any) -> dict[str, Tensor]:
    """The tensors and numbers of a sample by their place, numbers and arrays as tensors."""
    return dict(tensors_in(_as_tensors(sample)))


def _as_tensors(sample: Any) -> Any:
    if isinstance(sample, Tensor):
        return sample
    if isinstance(sample, dict):
        return {key: _as_tensors(one) for key, one in sample.items()}
    if isinstance(sample, (tuple, list)) and not all(isinstance(one, (int, float)) for one in sample[2:]):
        return [_as_tensors(one) for one in sample]
    if isinstance(sample, (tuple, list)) and len(sample) <= 2:
        return [_as_tensors(one) for one in sample]
    try:
        return torch.as_tensor(sample)
    except (TypeError, ValueError, RuntimeError):
        return None
