"""What a trainer does, and how far it is: the values that Lightning code compares with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class _Shown(StrEnum):
    """Shown as in Lightning: ``f"{state.fn}"`` is ``"TrainerFn.FITTING"``, and equal to ``"fit"``."""

    __str__ = Enum.__str__
    __format__ = Enum.__format__


class TrainerStatus(_Shown):
    """How far it is."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


class TrainerFn(_Shown):
    """The method that was called."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(_Shown):
    """What runs at the moment."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"

    @property
    def evaluating(self) -> bool:
        """Whether it is a validation or a test."""
        return self in (RunningStage.VALIDATING, RunningStage.TESTING, RunningStage.SANITY_CHECKING)

    @property
    def dataloader_prefix(self) -> str | None:
        """The beginning of its loader's name."""
        if self is RunningStage.VALIDATING:
            return "val"
        return None if self is RunningStage.SANITY_CHECKING else self.value


@dataclass(frozen=True)
class TrainerState:
    """``trainer.state``.

    Attributes:
        status: How far it is.
        fn: The method that was called last; None before the first.
        stage: What runs; None where nothing does.
    """

    status: TrainerStatus = TrainerStatus.INITIALIZING
    fn: TrainerFn | None = None
    stage: RunningStage | None = None

    @property
    def finished(self) -> bool:
        """Whether the method has returned."""
        return self.status is TrainerStatus.FINISHED

    @property
    def stopped(self) -> bool:
        """Whether it has ended, with an error or without."""
        return self.status in (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)
