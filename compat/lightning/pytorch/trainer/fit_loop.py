"""``trainer.fit_loop``: what Lightning code reads of it, and the limits that it sets there."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ..... import PacelineError
from .....errors import nearest

_LIMITS = ("max_epochs", "min_epochs", "max_steps", "min_steps")


@dataclass(frozen=True)
class Counts:
    """How many epochs or batches have begun and ended.

    Attributes:
        ready: Those that have been begun.
        started: The same.
        processed: Those that have been computed.
        completed: Those that are over.
    """

    ready: int
    started: int
    processed: int
    completed: int


@dataclass(frozen=True)
class Progress:
    """Counts over the whole run, and over what is under way."""

    total: Counts
    current: Counts
    is_last_batch: bool = False


class _Loop:
    """Reads the trainer; limits may be set."""

    trainer: Any

    def __init__(self, trainer: Any) -> None:
        vars(self)["trainer"] = trainer

    def __getattr__(self, name: str) -> Any:
        if name in _LIMITS:
            return getattr(vars(self)["trainer"], name)
        known = [one for one in dir(type(self)) if one[0] != "_"]
        near = nearest(name, [*known, *_LIMITS])
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r} here"
            + (f"; did you mean {near}?" if near else f"; use {', '.join([*known, *_LIMITS])} of it")
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _LIMITS:
            raise PacelineError(
                f"{type(self).__name__}.{name} cannot be set",
                code="read-only-attribute",
                allowed=", ".join(_LIMITS),
            )
        self.trainer.set_limit(name, value)

    @property
    def batch_idx(self) -> int:
        """The batch of the epoch that is under way, from 0; else the last one; -1 before the first."""
        session = self.trainer.session
        return -1 if session is None else session.batches_begun - 1

    @property
    def total_batch_idx(self) -> int:
        """The same, over all epochs."""
        session = self.trainer.session
        return -1 if session is None else session.batches_before + self.batch_idx


class TrainingEpochLoop(_Loop):
    """``trainer.fit_loop.epoch_loop``."""

    @property
    def val_loop(self) -> SimpleNamespace:
        """What programs read of it, private as it is: whether validation data exist."""
        return SimpleNamespace(_data_source=SimpleNamespace(is_defined=self.trainer.has_validation_data))

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        return int(self.trainer.global_step)

    @property
    def _batches_that_stepped(self) -> int:
        """Steps that are over, whoever makes them: Lightning's x axis, by which programs log."""
        trainer = self.trainer
        follows = trainer.session is not None and trainer.session.is_ending_step
        follows = follows or (trainer.ours.stage == "fit" and trainer.validating)
        return int(trainer.ours.global_step) - (follows and not trainer.sanity_checking)

    @property
    def batch_progress(self) -> Progress:
        """Batches that have begun."""
        trainer = self.trainer
        epoch, run = self.batch_idx + 1, self.total_batch_idx + 1
        return Progress(
            Counts(run, run, run, run), Counts(epoch, epoch, epoch, epoch), trainer.is_last_batch
        )


class FitLoop(_Loop):
    """Limits and place of a fit; ``max_epochs`` and the other limits may be set, also in a hook.

    Args:
        trainer: The trainer of this package.

    Example:
        >>> import paceline.compat.lightning as L
        >>> trainer = L.Trainer(max_epochs=2)
        >>> trainer.fit_loop.max_epochs = 4
        >>> trainer.max_epochs
        4
    """

    @property
    def epoch_loop(self) -> TrainingEpochLoop:
        """Its batches."""
        return TrainingEpochLoop(self.trainer)

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return int(self.trainer.current_epoch)

    @property
    def is_last_batch(self) -> bool:
        """Whether the batch under way is the epoch's last."""
        return bool(self.trainer.is_last_batch)

    @property
    def epoch_progress(self) -> Progress:
        """Epochs that have begun and ended."""
        trainer = self.trainer
        done = trainer.current_epoch
        begun = done + (trainer.ours.stage == "fit")
        counts = Counts(begun, begun, done, done)
        return Progress(counts, counts)

    @property
    def restarting(self) -> bool:
        """False: a run that is resumed within an epoch continues there."""
        return False
