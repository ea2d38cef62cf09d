"""The parts of a run, as the loops get them. They are put together once; nobody adds to them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ...callbacks import Callback, Logger
from ...callbacks.hooks import HookTable
from ...callbacks.trainer_view import TrainerView
from ...durations import Duration
from ...strategies import Strategy
from ...strategies.ranks.collectives import Collectives
from ..counters import RunCounters
from ..faults.signals import SignalStop
from ..faults.stop_agreement import StopController
from ..faults.watchdog import Watchdog
from ..metrics.logger import MetricLogger
from ..metrics.logger_queue import LoggerQueue
from ..module import TrainModule
from ..run.directory import RunDirectory
from ..runtime.compilation import Compilation
from ..state import Clock, Limits, StepState, TrainState

if TYPE_CHECKING:
    from ..config.arguments import TrainerArguments

fits = count(1)
"""Which ``fit`` of this process is next: a script that is run again has the same ones."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What lives from one ``fit`` to the next, the evaluations in between included.

    Attributes:
        settings: The validated arguments of the Trainer.
        fit_number: Which ``fit`` of this process it is, from 1; 0 before the first.
        quiet: It is a trial beside the user's runs: not counted among them, and its lines are dropped.
    """

    settings: TrainerArguments
    strategy: Strategy
    ranks: Collectives
    callbacks: list[Callback]
    fit_number: int
    quiet: bool
    state: TrainState
    clock: Clock
    step: StepState
    limits: Limits
    stop: StopController
    counters: RunCounters
    directory: RunDirectory
    logger: MetricLogger

    @classmethod
    def begin(
        cls,
        settings: TrainerArguments,
        strategy: Strategy,
        callbacks: list[Callback],
        fit_number: int = 0,
        quiet: bool = False,
    ) -> RunContext:
        """A new run: counters at zero, no folder, nothing logged."""
        ranks, state = strategy.collectives, TrainState()
        clock, limits = Clock(state), _limits(settings)
        stop = StopController(ranks, state, limits, clock)
        directory = RunDirectory(ranks, None if settings.fast_dev_run else settings.run_dir, quiet)
        strategy.settings = replace(strategy.settings, log_line=directory.log_line)
        line = directory.log_line
        queues = [LoggerQueue(callback, line) for callback in callbacks if isinstance(callback, Logger)]
        return cls(
            settings=settings,
            strategy=strategy,
            ranks=ranks,
            callbacks=callbacks,
            fit_number=fit_number,
            quiet=quiet,
            state=state,
            clock=clock,
            step=StepState(),
            limits=limits,
            stop=stop,
            counters=RunCounters(state, limits, stop),
            directory=directory,
            logger=MetricLogger(ranks, state, clock, queues, directory.log_line),
        )


def _limits(settings: TrainerArguments) -> Limits:
    max_time = settings.max_time
    seconds = None if max_time is None else float(Duration.parse(max_time).amount)
    max_epochs = 1 if settings.fast_dev_run else settings.max_epochs
    return Limits(
        settings.max_steps, max_epochs, max_time, seconds, settings.min_steps, settings.min_epochs
    )


@dataclass(frozen=True, kw_only=True)
class StageContext(RunContext):
    """One fit, validation, test or prediction.

    Attributes:
        name: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        trainer: What hooks are called with.
        closing: What is to be closed at its end, the last one first.
    """

    name: str
    trainer: TrainerView
    module: TrainModule
    datamodule: Any
    hooks: HookTable
    signals: SignalStop
    watchdog: Watchdog
    compilation: Compilation | None
    closing: ExitStack

    def report_compilation(self) -> None:
        """Log what was compiled since the last time."""
        if self.compilation is not None:
            self.compilation.report(f"step {self.state.global_step}")  # it is done


def parts_of(context: Any) -> dict[str, Any]:
    """The parts of a context by name, for one that has more of them."""
    return {field.name: getattr(context, field.name) for field in fields(context)}
