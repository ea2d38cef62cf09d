"""Our ``Checkpoint``, which saves when Lightning's ``ModelCheckpoint`` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..... import callbacks as ours
from .....durations import StepPosition
from ...translation.monitor import NamedMonitor, NotingTrainer
from .checkpoint_files import CheckpointFiles


class JudgedSaving(NamedMonitor, ours.Checkpoint):
    """Ours, which judges by Lightning's name for a value when Lightning does, and reports what is saved.

    Attributes:
        owner: The ``ModelCheckpoint``.
        files: Lightning's names for them.
        by_epochs: Save after every so many epochs; None: after steps or seconds.
        after_steps: Judge after every so many optimizer steps; None: at the end of epochs.
        after_epochs: Of which it is each so many.
        at_epoch_end: Judge at the end of an epoch; False: after validations; None: as the value says.
        score: The last value that was among the best; None before the first.
    """

    owner: Any
    files: CheckpointFiles
    by_epochs: int | None = None
    _at_end = False
    after_steps: int | None = None
    after_epochs = 1
    _waits_for_validation = False
    at_epoch_end: bool | None = None
    score: float | None = None
    _noting: NotingTrainer | None = None

    def on_setup(self, trainer: Any, stage: str) -> None:
        super().on_setup(trainer, stage)
        if stage == "fit":
            self.owner.begin()

    def on_fit_start(self, trainer: Any) -> None:
        super().on_fit_start(trainer)
        self._at_end = False
        self.keep = self.keep and 1
        self.files.forget_others((*self._kept.saved, *(name for name, _ in self._kept.ranked)))

    def on_fit_end(self, trainer: Any) -> None:
        self._at_end = True
        self.keep = self.keep and 2  # beside the newest of Lightning's
        super().on_fit_end(trainer)
        trainer.ranks.barrier()  # rank 0 has written the files that others may read

    def _save(self, trainer: Any) -> None:
        if not self._at_end and not self.watched and not self._passes(self._hook, trainer):
            return
        ended = not trainer.counters.samples_in_epoch and trainer.global_step > 0
        epoch = trainer.epoch - ended
        # At the end of a fit ours writes one that Lightning writes at the end of an epoch only.
        if not self._at_end or (self.by_epochs and not (epoch + 1) % self.by_epochs):
            newest = next(reversed(self.files.named(self._kept.saved)), None)
            self.files.name(trainer.ranks, self._name_at(trainer), epoch, newest)
        super()._save(trainer)

    def _upkeep(self, trainer: Any, checkpoints: Any, name: str) -> Callable[[], None]:
        write, clean = self.owner.follow(trainer, name), super()._upkeep(trainer, checkpoints, name)

        def upkeep() -> None:
            write()
            clean()

        return upkeep

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and its file."""
        if self._under_way is not None:
            self._under_way.wait()

    def after_save(self, path: Path) -> None:
        self.owner.report(path)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"files": self.files.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if "files" in state:  # earlier versions had none
            self.files.restore(state["files"])

    def after_step(self, trainer: Any) -> None:
        """An optimizer step of those in which a value is judged is over."""
        run = self._run
        often = run.check_val_every_n_epoch
        validates = run.enable_validation and (often is None or not (trainer.epoch + 1) % often)
        waits = run.is_last_batch and validates and not self.looks_at_epoch_ends
        hook = "on_train_batch_end"
        self._waits_for_validation = waits or not self._judge(trainer, strict=False, hook=hook)

    def next_due(self, at: StepPosition) -> float:
        return 0 if self.after_steps else super().next_due(at)

    def on_validation_end(self, trainer: Any) -> None:
        if not trainer.loop.is_fit_validation or not self.watched or self.looks_at_epoch_ends:
            return
        if self._waits_for_validation:
            self._waits_for_validation = False
            self._judge(trainer, hook="on_train_batch_end")
        else:
            self._judge_in_epoch(trainer, "on_validation_end")

    def on_train_epoch_end(self, trainer: Any) -> None:
        if self.watched and self.looks_at_epoch_ends:
            self._judge_in_epoch(trainer, "on_train_epoch_end")

    @property
    def looks_at_epoch_ends(self) -> bool:
        """Whether Lightning saves at the end of an epoch; else after a validation."""
        if self.at_epoch_end is not None:
            return self.at_epoch_end
        run = self.owner._run
        if run.check_val_every_n_epoch != 1 or not run.enable_validation:
            return not run.enable_validation
        return bool(run.val_check_interval == 1.0)

    @property
    def _hook(self) -> str:
        """Where Lightning saves without a value that is watched."""
        if not self.by_epochs:
            return "on_train_batch_end"
        return "on_train_epoch_end" if self.looks_at_epoch_ends else "on_validation_end"

    def _passes(self, hook: str, trainer: Any) -> bool:
        return bool(self.owner.passes(hook, trainer.global_step))

    def _judge_in_epoch(self, trainer: Any, hook: str) -> None:
        if not self.after_steps and not (trainer.epoch + 1) % self.after_epochs:
            self._judge(trainer, hook=hook)

    def with_value(self, trainer: Any, strict: bool = True) -> NotingTrainer | None:
        if not self.owner.overrides("_monitor_candidates"):
            return super().with_value(trainer, strict)
        value = self.owner._monitor_candidates(self._run)[self.watched]
        return NotingTrainer(trainer, trainer.ranks.on_rank_zero(lambda: float(value)))

    def _judge(  # type: ignore[override]
        self, trainer: Any, strict: bool = True, *, hook: str
    ) -> bool:
        """Judge the value; False where there is none yet."""
        if not self._passes(hook, trainer):
            return True
        self._noting = noting = self.with_value(trainer, strict)
        if noting is None:
            return False
        if not self.owner.overrides("_update_best_and_save"):
            self.rank()
        elif self._ranking(noting) is not self._kept:
            candidates = self.owner._monitor_candidates(self._run)
            self.owner._update_best_and_save(torch.tensor(noting.value), self._run, candidates)
        return True

    def _ranking(self, trainer: Any) -> Any:
        assert self._monitor is not None
        name, better = self._name_at(trainer), self._monitor.better
        ranked, kept = self._kept.ranked, self._kept
        if len(ranked) == self.keep_best:  # Lightning drops the earliest of equal ones
            first = min(one for one, value in ranked if value == ranked[-1][1])
            kept = replace(kept, ranked=tuple(sorted(ranked, key=lambda one: one[0] == first)))
        found = kept.ranking(name, trainer.value, self.keep_best, better)
        return self._kept if found is kept else found

    def rank(self) -> None:
        """Note the value that is judged, where it is among the best."""
        noting = self._noting
        assert noting is not None
        before = self._kept.ranked
        super()._judge(noting)  # type: ignore[arg-type]
        if self._kept.ranked != before:
            self.score = noting.value
            kept = {name for name, _ in self._kept.ranked}
            replaced = next((name for name, _ in reversed(before) if name not in kept), None)
            self.files.name(noting.ranks, self._name_at(noting), self._run.current_epoch, replaced)  # type: ignore[arg-type]


JudgedSaving.__name__ = "ModelCheckpoint"  # in messages
