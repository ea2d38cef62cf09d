"""The checkpoints of a run: collected, written, committed, and the superfluous ones deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from ...errors import PacelineError
from ...strategies import Strategy
from ..faults.nonfinite import Guard
from ..faults.watchdog import Watchdog
from ..metrics.logger import MetricLogger
from ..storage.remote import RemoteError
from ..utils.paths import as_path
from .files import commit
from .files.pointers import write_pointer
from .files.remote_run import RemoteRun
from .run_state import RunState
from .writer import CheckpointWriter, Save


class CheckpointManager:
    """Writes what a ``RunState`` gives.

    Args:
        strategy: Says which part of which tensor each rank writes; its rank 0 commits and deletes.
        logger: Knows whether an evaluation is under way, in which the state is not whole.
        watchdog: Notified when a save begins.
        guard: Knows whether the last update was skipped; None where nothing looks.
        folder: The ``checkpoints`` folder of the run; None where nothing is written.
        remote: Where the run's checkpoints are sent to, if anywhere.
        before_save: Called before each save, on all ranks; its errors are the save's.

    Attributes:
        seconds: How long training has waited for saves, on this rank.
        newest: The newest checkpoint of this session that a run can resume from, written or about to be.
    """

    def __init__(
        self,
        strategy: Strategy,
        run_state: RunState,
        logger: MetricLogger,
        watchdog: Watchdog,
        guard: Guard | None,
        folder: Path | None,
        remote: RemoteRun | None = None,
        before_save: Callable[[], None] = lambda: None,
    ) -> None:
        self._ranks, self._run_state, self._logger = strategy.collectives, run_state, logger
        self._watchdog, self._guard, self._folder = watchdog, guard, folder
        self._remote, self._before_save = remote, before_save
        self._writer = CheckpointWriter(strategy, remote)
        self._repeated = ""
        self.seconds = 0.0
        self.newest: Path | None = None

    def save(self, name: str, *, weights_only: bool, background: bool) -> Save:
        """Write ``checkpoints/<name>``. To be called on all ranks.

        One that is being written or committed already is not written again, unless ``allow_again`` was
        called for its step.

        Args:
            name: The name of the checkpoint's folder: ``step-00000025`` or ``weights-00000025``.
            weights_only: Write the weights alone; a run cannot resume from them.
            background: Return when a copy of the tensors is taken; a thread writes it.

        Returns:
            The save, whose ``error`` is why it could not be written.
        """
        assert self._folder is not None
        target = self._folder / name
        again, self._repeated = name.endswith(self._repeated or "-"), ""
        if not weights_only:
            self.newest = target
        found = None if again else self._writer.find(target)
        return found or self._start(target, weights_only, background, replace=again)

    def save_to(self, path: Path, weights_only: bool = False) -> None:
        """Write a checkpoint into a new folder and wait for it. To be called on all ranks.

        Raises:
            PacelineError: when the folder exists, when it cannot be written, and inside a validation.
        """
        save = self._start(path, weights_only, background=False)
        if save.error is not None:
            raise save.error

    def wait(self) -> None:
        """Wait for the save that is being written, whatever becomes of it."""
        self._writer.wait()

    def roll_back(self, path: str | Path) -> None:
        """Take weights, optimizer states and averages of weights back from a checkpoint of this run.

        Counters, schedules, learning rates and the position in the data stay: the batches since then are
        not trained on again. On all ranks, in ``on_step_boundary``.

        Args:
            path: The checkpoint; not one of weights only.

        Raises:
            PacelineError: for a checkpoint that is damaged or of another model.

        Example:
            >>> class Retreat(Callback):
            ...     def on_step_boundary(self, trainer):
            ...         if trainer.global_step == 3:
            ...             trainer.checkpoints.roll_back(trainer.run.latest)
            >>> often = Checkpoint("1st")
            >>> trainer = Trainer(max_steps=4, callbacks=[Retreat(), often], loggers=False)
            >>> run = trainer.fit(Net(), train_loader)
        """
        folder = as_path(path, "roll_back")
        if self._guard is not None:
            self._guard.finish()
        self._run_state.roll_back(folder)

    def allow_again(self, step: int) -> None:
        """The next save, if it is of this step, replaces the checkpoint that exists of it.

        A validation was repeated: the existing one is of before that.
        """
        self._repeated = f"-{step:08d}"

    def prepare(self, weights_only: bool = False) -> None:
        """Have a thread touch the memory that background saves copy into, before the first one needs it.

        To be called after a step, when the optimizers have their state. On one CPU only: ranks divide what
        they write, and an accelerator's copies lie in pinned memory.
        """
        run = self._run_state
        if self._ranks.world_size > 1 or run.strategy.device.type != "cpu":
            return
        tensors = [p for _, p in run.module.named_parameters(remove_duplicate=False)]
        tensors += run.module.buffers()
        tensors += [average for c in run.callbacks for average in c.parameter_state().values()]
        if not weights_only:
            states = [state for o in run.optimization.optimizers for state in o.state.values()]
            tensors += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        self._writer.reserve(tensors)

    def update(self, pointers: dict[str, str], dropped: Sequence[str]) -> None:
        """Bring the folder up to date after a new checkpoint. Rank 0 does.

        Args:
            pointers: Which checkpoint ``latest``, ``best`` and their like are to name.
            dropped: Those to delete, in an order that never leaves one that looks whole.
        """
        if not self._ranks.is_global_zero or self._folder is None:
            return
        with suppress(OSError):  # they can be lost without harm
            for pointer, name in pointers.items():
                write_pointer(self._folder / pointer, name)
        try:
            for name in dropped:
                commit.delete(self._folder / name)
                if self._remote is not None:
                    self._remote.drop(name)
            if self._remote is not None:
                self._remote.send_logs()
        except (OSError, RemoteError) as error:
            problem = " ".join(str(error).split())
            self._run_state.trainer.log_line(
                f"warning: an older checkpoint could not be deleted, or a log not be sent: {problem}"
            )

    def close(self, timeout: float | None = None) -> Exception | None:
        """Wait for the save that is being written. Its error.

        Args:
            timeout: The most seconds; None: as long as it takes.
        """
        return self._writer.close(timeout)

    def _start(self, path: Path, weights_only: bool, background: bool, replace: bool = False) -> Save:
        if self._logger.is_evaluating:
            raise PacelineError(
                "a checkpoint cannot be written inside a validation: the run's state is incomplete there",
                code="checkpoint-not-saved",
                fix="write it in on_step_boundary, or set a flag there and write it then",
            )
        started = time.perf_counter()
        if self._guard is not None:
            self._guard.finish()  # a step whose flag is still pending may have skipped its update
        self._before_save()
        content = self._run_state.capture(weights_only)
        try:
            with self._watchdog.during("save"):
                return self._writer.write(path, content, background, replace)
        finally:
            self.seconds += time.perf_counter() - started
