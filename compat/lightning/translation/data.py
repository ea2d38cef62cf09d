"""A ``LightningDataModule`` as our loop reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from .... import DataModule
from ....trainer.batch_hooks import BATCH_HOOKS
from ....trainer.rng import CPUState, cpu_state, set_cpu_state
from .hooks import overrides

_METHODS = ("prepare_data", "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


class DataAdapter(DataModule):
    """Passes each call to the user's; ``teardown`` is called with the other hooks.

    Args:
        given: The user's.
        trainer: What its ``trainer`` is.
    """

    def __init__(self, given: Any, trainer: Any) -> None:
        self.given = given
        self._captured: dict[str, Any] = {}
        given.trainer = trainer
        for name in (*_METHODS, *BATCH_HOOKS):
            method = getattr(given, name, None)
            if callable(method) and (name in _METHODS or overrides(given, name, DataModule)):
                setattr(self, name, method)
            if callable(method) and name.endswith("_dataloader"):
                setattr(self, name, partial(loaded, trainer, name, method))

    def setup(self, stage: str) -> None:
        setup = getattr(self.given, "setup", None)
        if callable(setup):
            setup(self.given.trainer.state.fn)

    def capture(self) -> None:
        """Take the user's state: Lightning asks for it before ``on_save_checkpoint``."""
        self._captured = dict(self.given.state_dict() or {})

    def state_dict(self) -> dict[str, Any]:
        return self._captured

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given.load_state_dict(state)


class GivenLoaders(DataModule):
    """Loaders that ``fit`` was given, where loaders are to be made again: they are the same ones.

    Args:
        train: The training loader.
        val: Those of validation; None where the module has them, or there are none.
    """

    def __init__(self, train: Any, val: Any) -> None:
        vars(self)["train_dataloader"] = lambda: train
        if val is not None:
            vars(self)["val_dataloader"] = lambda: val


def unshuffled(loaders: Any) -> Any:
    """Loaders that read their data in order, as Lightning has them under ``overfit_batches``.

    Args:
        loaders: One, or several in lists and mappings; what is not shuffled, or is no DataLoader, is kept.
    """
    if isinstance(loaders, Mapping):
        return {name: unshuffled(one) for name, one in loaders.items()}
    if isinstance(loaders, (list, tuple)):
        return [unshuffled(one) for one in loaders]
    if not isinstance(loaders, DataLoader) or not isinstance(loaders.sampler, RandomSampler):
        return loaders
    return DataLoader(
        loaders.dataset,
        batch_size=loaders.batch_size,
        sampler=SequentialSampler(loaders.dataset),  # type: ignore[arg-type]
        num_workers=loaders.num_workers,
        collate_fn=loaders.collate_fn,
        pin_memory=loaders.pin_memory,
        drop_last=loaders.drop_last,
        timeout=loaders.timeout,
        worker_init_fn=loaders.worker_init_fn,
        multiprocessing_context=loaders.multiprocessing_context,
        prefetch_factor=loaders.prefetch_factor,
        persistent_workers=loaders.persistent_workers,
    )


def loaded(trainer: Any, name: str, method: Callable[[], Any]) -> Any:
    """What a method for data gives, noted for the trainer; in order under ``overfit_batches``.

    Args:
        trainer: The trainer of this package.
        name: Of the method.
        method: The user's.
    """
    with _generators_of_the_start(trainer, name):
        trainer.loaded[name] = found = method()
    overfits = trainer.given["overfit_batches"] and name in ("train_dataloader", "val_dataloader")
    return unshuffled(found) if overfits else found


def note_generators(trainer: Any) -> None:
    """A fit begins: random data that its loaders are made of is drawn with the generators of now.

    Lightning continues with those of ``seed_everything``, where our loop seeds a fit by itself.

    Args:
        trainer: The trainer of this package.
    """
    if "PL_GLOBAL_SEED" in os.environ:  # seed_everything was called
        trainer.generators = dict.fromkeys(("train_dataloader", "val_dataloader"), cpu_state())


@contextmanager
def _generators_of_the_start(trainer: Any, name: str) -> Iterator[None]:
    waiting: dict[str, CPUState] = trainer.generators
    start = waiting.pop(name, None)  # loaders that are made again draw other data
    if start is None:
        yield
        return
    ours = cpu_state()
    set_cpu_state(start)
    try:
        yield
        if trainer.num_sanity_val_steps == 0 and "val_dataloader" in waiting:
            waiting["val_dataloader"] = cpu_state()  # a sanity check leaves no trace, and is none here
    finally:
        set_cpu_state(ours)
