"""When checkpoints are written, and which are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..durations import Cadence, Duration
from ..errors import PacelineError
from .base import Callback
from .monitor import Monitor, refuse_unknown

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer


_PEERS = {
    "save_top_k": "keep",
    "save_total_limit": "keep",
    "every_n_epochs": "every",
    "every_n_train_steps": "every",
    "save_steps": "every",
    "train_time_interval": "every",
}


class Checkpoint(Callback):
    """Writes a checkpoint every so often, whenever the monitored value gets better, and at the end.

    Args:
        every: A duration: steps, epochs or time.
        monitor: A value to keep the best checkpoint of.
        mode: ``"min"`` or ``"max"``; None takes it from the name.
        keep: The newest so many are kept, beside the best; None keeps all.
        name: The key of its state, where there are two of this class.

    Attributes:
        best_score: The best monitored value so far; None before the first.
    """

    def __init__(
        self,
        every: Any = "1ep",
        monitor: str | None = None,
        mode: str | None = None,
        keep: int | None = 3,
        *,
        name: str | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown("Checkpoint", unknown, "every, monitor, mode, keep, name", _PEERS)
        self.every = Duration.parse(every, where="Checkpoint(every=...)")
        self._monitor = Monitor(monitor, mode, "Checkpoint") if monitor is not None else None
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise PacelineError(
                "Checkpoint: keep counts checkpoints",
                got=keep,
                allowed="a whole number from 1 on, or None for all",
            )
        self.keep = keep
        self.name = name
        self.best_score: float | None = None
        self._best: str | None = None
        self._saved: list[str] = []
        self._cadence: Cadence | None = None
        self._improved = False

    @property
    def monitor(self) -> str | None:
        """The full name of the value that is watched."""
        return self._monitor.name if self._monitor else None

    def on_setup(self, trainer: Trainer, stage: str) -> None:
        if stage == "fit":  # a new run has its own; a resumed one gets its state back after this
            self.best_score, self._best, self._saved = None, None, []

    def on_fit_start(self, trainer: Trainer) -> None:
        if trainer.folder is not None:
            folder = trainer.folder / "checkpoints"
            self._forget_missing(trainer.on_rank_zero(lambda: [p.name for p in folder.glob("step-*")]))
        self._cadence = Cadence(self.every, trainer.steps_per_epoch)
        self._cadence.last_seconds = trainer.agreed_clock()
        self._improved = False

    def _forget_missing(self, present: list[str]) -> None:
        """A run that began from another run's checkpoint keeps a best of its own."""
        self._saved = [name for name in self._saved if name in present]
        if self._best is not None and self._best not in present:
            self.best_score, self._best = None, None

    def on_validation_end(self, trainer: Trainer) -> None:
        if trainer.validation_counts and (self.monitor or "").startswith("val/"):
            self._judge(trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        if self.monitor is not None and not self.monitor.startswith("val/"):
            self._judge(trainer)

    def on_step_boundary(self, trainer: Trainer) -> None:
        assert self._cadence is not None
        due = trainer.is_due(self._cadence)
        if self._improved or due:
            self._improved = False
            self._save(trainer)

    def on_fit_end(self, trainer: Trainer) -> None:
        if trainer.global_step:
            self._save(trainer)

    def _judge(self, trainer: Trainer) -> None:
        """Before anything is saved, so that every checkpoint knows of every verdict."""
        assert self._monitor is not None
        value = trainer.require_metric(self._monitor.name, "Checkpoint")
        if self._monitor.better(value, self.best_score):
            self.best_score, self._best, self._improved = value, _name(trainer), True

    def _save(self, trainer: Trainer) -> None:
        if trainer.folder is None:
            return
        folder = trainer.folder / "checkpoints"
        name = _name(trainer)
        if name not in self._saved:
            self._saved.append(name)
            if not trainer.on_rank_zero(lambda: (folder / name / "manifest.json").exists()):
                trainer.save_checkpoint(folder / name)
        trainer.point_to("latest", name)
        if self._best is not None:
            trainer.point_to("best", self._best)
        self._prune(trainer, folder)

    def _prune(self, trainer: Trainer, folder: Path) -> None:
        if self.keep is None:
            return
        others = {
            name
            for callback in trainer.callbacks
            if isinstance(callback, Checkpoint) and callback is not self
            for name in (*callback._saved, callback._best)
        }
        for name in self._saved[: -self.keep]:
            if name != self._best:
                self._saved.remove(name)
                if name not in others:
                    trainer.delete_checkpoint(folder / name)

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best": self._best, "saved": self._saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_score, self._best = state["best_score"], state["best"]
        self._saved = list(state["saved"])


def _name(trainer: Trainer) -> str:
    return f"step-{trainer.global_step:08d}"
