"""When checkpoints are written, and which are kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..common.argument_checks import (
    COUNT,
    COUNT_OR_NONE,
    DURATION,
    NAME_OR_NONE,
    SWITCH,
    TEXT_OR_NONE,
    check_arguments,
    check_names,
    one_of,
)
from ..common.retries import retried
from ..durations import Cadence, Duration, StepPosition
from ..errors import PacelineError, cut
from .base import Callback
from .kept_checkpoints import KeptCheckpoints
from .monitors.monitor import MODE, Monitor

if TYPE_CHECKING:
    from .trainer_view import CheckpointWriter, Save, TrainerView

_IS_NAME = re.compile(r"^[a-z]\w*(/|$)|_loss|loss_", re.IGNORECASE)
"""A value's name in the place of a duration."""


class Checkpoint(Callback):
    """Writes a checkpoint every so often, whenever the monitored value gets better, and at the end.

    Two of them serve two purposes: ``Checkpoint("10min", keep=1)`` beside
    ``Checkpoint("10ep", keep=None, name="milestones")`` loses ten minutes at most and keeps the milestones.

    Args:
        every: A duration: steps, epochs or time (rank 0's clock).
        monitor: A value to keep the best checkpoint of.
        mode: ``"min"`` or ``"max"``; None takes it from the name.
        keep: The newest so many are kept, beside the best; None keeps all.
        keep_best: So many of the best are kept, where a value is monitored.
        weights_only: Write the weights alone, a third of the size under Adam. A run cannot resume from
            them.
        background: Write in a thread while training continues, from a copy of the tensors in the host's
            memory; False: training waits for the disk, and no copy is held.
        on_save_error: ``"raise"`` ends the run when one cannot be written, ``"warn"`` reports it and
            continues.
        save_on_exception: On one device, save the last step when an error ends the run between two steps or
            in a validation: the data cannot be read, or a hook raises. An error inside a step leaves a
            state that no run can resume from exactly, and nothing is saved.
        name: The key of its state, where there are two of this class. The first one that monitors writes
            the pointer ``best``, another one ``best-<name>``.

    Attributes:
        best_score: The best monitored value so far; None before the first.
        best: The checkpoint that has it, a path.
        latest: The newest one that this callback keeps.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> best = Checkpoint("1ep", monitor="val/loss", keep=1)
        >>> trainer = Trainer(max_epochs=2, callbacks=best, progress=False, loggers=False)
        >>> run = trainer.fit(Net(), train_loader, val_loader)
        >>> module = Net.load_from_checkpoint(run.best)
    """

    def __init__(
        self,
        every: Any = "1ep",
        monitor: str | None = None,
        mode: str | None = None,
        keep: int | None = 3,
        *,
        keep_best: int = 1,
        weights_only: bool = False,
        background: bool = True,
        on_save_error: Literal["raise", "warn"] = "raise",
        save_on_exception: bool = True,
        name: str | None = None,
        **unknown: Any,
    ) -> None:
        check_names(Checkpoint, unknown)
        if monitor is None and isinstance(every, str) and _IS_NAME.search(every):
            raise PacelineError(
                "Checkpoint: every says how often, and the value to watch is monitor",
                code="invalid-value",
                got=every,
                fix=f"Checkpoint(monitor={cut(every)!r})",
            )
        check_arguments(
            "Checkpoint",
            every=(every, DURATION),
            monitor=(monitor, TEXT_OR_NONE),
            mode=(mode, MODE),
            keep=(keep, COUNT_OR_NONE),
            keep_best=(keep_best, COUNT),
            weights_only=(weights_only, SWITCH),
            background=(background, SWITCH),
            on_save_error=(on_save_error, one_of("raise", "warn")),
            save_on_exception=(save_on_exception, SWITCH),
            name=(name, NAME_OR_NONE),
        )
        for option, is_given in (("mode", mode is not None), ("keep_best", keep_best != 1)):
            if is_given and monitor is None:
                fix = 'Checkpoint(monitor="val/loss")'
                raise PacelineError(
                    f"Checkpoint: {option} is given without monitor", code="missing-argument", fix=fix
                )
        self.every = Duration.parse(every)
        self._monitor = Monitor(monitor, mode, "Checkpoint") if monitor is not None else None
        self.keep, self.keep_best = keep, keep_best
        self.weights_only, self.background, self.on_save_error = weights_only, background, on_save_error
        self.save_on_exception = save_on_exception and not weights_only
        self.name = name
        self._kept = self._committed = KeptCheckpoints()
        self._cadence: Cadence | None = None
        self._folder: Path | None = None
        self._improved = False
        self._under_way: Save | None = None
        self._reported: Exception | None = None

    @property
    def monitor(self) -> str | None:
        """The full name of the value that is watched."""
        return self._monitor.name if self._monitor else None

    @property
    def best_score(self) -> float | None:
        """The best monitored value so far; None before the first."""
        return self._kept.best_score

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best monitored value, of the last fit; None before the first.

        Where several callbacks monitor values, each has its best one; ``run.best`` is that of the first.
        """
        return self._path(self._kept.best)

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint that this callback keeps; None before the first."""
        return self._path(next(reversed(self._kept.saved), None))

    def _path(self, name: str | None) -> Path | None:
        return None if name is None or self._folder is None else self._folder / name

    def on_setup(self, trainer: TrainerView, stage: str) -> None:
        if stage == "fit":  # a new run has its own; a resumed one gets its state back after this
            self._kept = KeptCheckpoints()

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._folder = None if trainer.folder is None else trainer.folder / "checkpoints"
        self._forget_missing(trainer)
        self._cadence = Cadence(self.every, trainer.steps_per_epoch)
        self._cadence.restart(trainer.counters.seconds())
        self._improved, self._under_way, self._committed = False, None, self._kept
        self._prepared = False

    def _forget_missing(self, trainer: TrainerView) -> None:
        """A run that began from another run's checkpoint keeps its own best."""
        if trainer.folder is None:
            return
        folder = trainer.folder / "checkpoints"
        present = trainer.ranks.on_rank_zero(lambda: retried(lambda: [p.name for p in folder.glob("*-*")]))
        self._kept = self._kept.among(present)

    def on_validation_end(self, trainer: TrainerView) -> None:
        if trainer.loop.is_fit_validation and (self.monitor or "").startswith("val/"):
            self._judge(trainer)

    def on_train_epoch_end(self, trainer: TrainerView) -> None:
        if self.monitor is not None and not self.monitor.startswith("val/"):
            self._judge(trainer)

    def on_step_boundary(self, trainer: TrainerView) -> None:
        assert self._cadence is not None
        if self.background and not self._prepared and trainer.folder is not None:
            self._prepared = True
            trainer.checkpoints.prepare(self.weights_only)
        if self._under_way is not None and self._under_way.error is not None:
            self._report_early(trainer)
        due = trainer.counters.is_due(self._cadence)
        if self._improved or due:
            self._improved = False
            self._settle(trainer)
            self._save(trainer)
            if not self.background:
                self._settle(trainer)

    def next_due(self, at: StepPosition) -> float:
        assert self._cadence is not None
        if self._under_way is not None and not self._under_way.committed:  # it may fail
            return 0
        return self._cadence.next_step(at)

    def on_fit_end(self, trainer: TrainerView) -> None:
        failed = [self._outcome()]
        if trainer.global_step or trainer.interrupted:
            self._save(trainer)
        for error in (*failed, self._outcome()):
            if error is not None:
                self._report(trainer, error)

    def on_exception(self, trainer: TrainerView, error: BaseException) -> None:
        if not self.save_on_exception or not isinstance(error, Exception) or error is self._reported:
            return
        if trainer.stage != "fit" or trainer.folder is None or trainer.world_size > 1:
            return  # other ranks are elsewhere
        if not trainer.loop.is_between_steps or self._name_at(trainer) in self._kept.saved:
            return
        self._outcome()
        self._save(trainer)
        failed = self._outcome()
        if failed is not None:
            raise failed
        trainer.log_line(
            f"saved {self._name_at(trainer)}, the step before the error; resume='latest' continues there"
        )

    def _judge(self, trainer: TrainerView) -> None:
        """Before anything is saved, so that every checkpoint knows of every verdict."""
        assert self._monitor is not None
        self._settle(trainer)  # a best that could not be written is none
        ranked = self._ranking(trainer)
        self._improved = self._improved or ranked is not self._kept
        self._kept = ranked

    def _ranking(self, trainer: TrainerView) -> KeptCheckpoints:
        """What is kept with this step among the best; the same where its value is not."""
        assert self._monitor is not None
        value = trainer.require_metric(self._monitor.name, "Checkpoint")
        return self._kept.ranking(self._name_at(trainer), value, self.keep_best, self._monitor.better)

    def _name_at(self, trainer: TrainerView) -> str:
        return f"{'weights' if self.weights_only else 'step'}-{trainer.global_step:08d}"

    def after_save(self, path: Path) -> None:
        """Override it to do something with a complete checkpoint, on every rank.

        Args:
            path: Its folder. One that is written in the background is known to be complete when the next
                one begins, or when the fit ends.

        Example:
            >>> class Announced(Checkpoint):
            ...     def after_save(self, path):
            ...         print(path.name)
            >>> run = Trainer(max_epochs=1, callbacks=Announced(), progress=False).fit(Net(), train_loader)
            step-00000004
        """

    # -- saving --------------------------------------------------------------------------------

    def _save(self, trainer: TrainerView) -> None:
        """Start a save. What it makes superfluous is deleted when it is there, not before."""
        if trainer.folder is None:
            return
        name = self._name_at(trainer)
        self._kept = self._kept.adding(name)
        checkpoints = trainer.checkpoints
        save = checkpoints.save(name, weights_only=self.weights_only, background=self.background)
        save.then(self._upkeep(trainer, checkpoints, name))
        self._under_way = save

    def _upkeep(self, trainer: TrainerView, checkpoints: CheckpointWriter, name: str) -> Callable[[], None]:
        """What is to be done when this one is committed: pointers, and the deletion of superfluous ones."""
        dropped = self._kept.superfluous(self.keep)
        self._kept = self._kept.without(dropped)
        others = self._others(trainer)
        dropped = [gone for gone in dropped if gone not in others]
        pointers = {} if self.weights_only else {"latest": name}
        if self._kept.best is not None:
            pointers[self._best_pointer(trainer)] = self._kept.best
        return lambda: checkpoints.update(pointers, dropped)

    def catch_up(self, trainer: TrainerView, checkpoints: CheckpointWriter) -> None:
        """After a resume, do what a crash right after the save prevented."""
        self._forget_missing(trainer)
        name = self._name_at(trainer)
        if name in self._kept.saved:
            self._upkeep(trainer, checkpoints, name)()

    def _outcome(self) -> Exception | None:
        """Wait for the save under way. One that failed never was: neither saved nor the best."""
        save, self._under_way = self._under_way, None
        if save is None:
            return None
        save.wait()
        if save.error is None:
            self._committed = self._kept
            self.after_save(save.target)
        elif self._kept.is_ranked(save.target.name):
            self._kept = self._committed
        else:
            self._kept = replace(self._kept, saved=self._committed.saved)
        return save.error

    def _settle(self, trainer: TrainerView) -> None:
        failed = self._outcome()
        if failed is not None:
            self._report(trainer, failed)

    def _report(self, trainer: TrainerView, error: Exception) -> None:
        before, self._reported = self._reported, error
        if self.on_save_error == "raise":
            raise error
        if before is not error:
            trainer.log_line(f"warning: {' '.join(str(error).split())}")

    def _report_early(self, trainer: TrainerView) -> None:
        """A save failed in the background: ranks may see it at different steps, so they agree to stop."""
        assert self._under_way is not None
        error = self._under_way.error
        if self.on_save_error == "raise":
            trainer.stop("a checkpoint could not be written")
        elif error is not None:
            self._report(trainer, error)

    def _best_pointer(self, trainer: TrainerView) -> str:
        monitoring = [c for c in trainer.callbacks if isinstance(c, Checkpoint) and c._monitor is not None]
        return "best" if monitoring[0] is self else f"best-{self.name}"

    def _others(self, trainer: TrainerView) -> set[str | None]:
        """What other callbacks of this class hold on to."""
        return {
            name
            for callback in trainer.callbacks
            if isinstance(callback, Checkpoint) and callback is not self
            for name in (*callback._kept.saved, *(one for one, _ in callback._kept.ranked))
        }

    def state_dict(self) -> dict[str, Any]:
        watched = [self._monitor.name, self._monitor.mode] if self._monitor else None
        best = {"best_score": self._kept.best_score, "best": self._kept.best}
        ranked = [list(one) for one in self._kept.ranked]
        return best | {"saved": list(self._kept.saved), "ranked": ranked, "watched": watched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved, best, score = tuple(state["saved"]), state["best"], state["best_score"]
        if not all(isinstance(name, str) for name in (*saved, best or "")):
            raise TypeError("saved and best are names of checkpoints")
        self._kept = replace(self._kept, saved=saved)
        if state["watched"] == self.state_dict()["watched"]:  # a best of another value is none
            first = [] if best is None else [(best, score)]  # as earlier versions had it
            ranked = tuple((str(name), float(value)) for name, value in state.get("ranked", first))
            self._kept = replace(self._kept, ranked=ranked[: self.keep_best])
