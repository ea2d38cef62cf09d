"""``ModelCheckpoint`` with Lightning's arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..... import PacelineError
from ..... import callbacks as ours
from .....durations import StepPosition
from ...translation.monitor import NamedMonitor, named_monitor, state_name
from .callback import Callback
from .checkpoint_files import CheckpointFiles
from .overrides import refuse_overrides
from .written_checkpoints import WrittenCheckpoints


class _Saving(NamedMonitor, ours.Checkpoint):
    """Ours, which judges by Lightning's name for a value when Lightning does, and reports what is saved.

    Attributes:
        begin: Called when a fit begins.
        report: Gets the path of each checkpoint.
        files: Lightning's names for them.
        by_epochs: Save after every so many epochs; None: after steps or seconds.
        after_steps: Judge after every so many optimizer steps; None: at the end of epochs.
        after_epochs: Of which it is each so many.
        at_epoch_end: Judge at the end of an epoch; False: after validations; None: as the value says.
        score: The last value that was among the best; None before the first.
    """

    begin: Callable[[], None]
    report: Callable[[Path], None]
    files: CheckpointFiles
    by_epochs: int | None = None
    _at_end = False
    after_steps: int | None = None
    after_epochs = 1
    _waits_for_validation = False
    at_epoch_end: bool | None = None
    score: float | None = None

    def on_setup(self, trainer: Any, stage: str) -> None:
        super().on_setup(trainer, stage)
        if stage == "fit":
            self.begin()

    def on_fit_start(self, trainer: Any) -> None:
        super().on_fit_start(trainer)
        self._at_end = False
        self.keep = self.keep and 1
        self.files.forget_others((*self._kept.saved, *(name for name, _ in self._kept.ranked)))

    def on_fit_end(self, trainer: Any) -> None:
        self._at_end = True
        self.keep = self.keep and 2  # beside the newest of Lightning's
        super().on_fit_end(trainer)

    def _save(self, trainer: Any) -> None:
        ended = not trainer.counters.samples_in_epoch and trainer.global_step > 0
        epoch = trainer.epoch - ended
        # At the end of a fit ours writes one that Lightning writes at the end of an epoch only.
        if not self._at_end or (self.by_epochs and not (epoch + 1) % self.by_epochs):
            newest = next(reversed(self.files.named(self._kept.saved)), None)
            self.files.name(trainer.ranks, self._name_at(trainer), epoch, newest)
        super()._save(trainer)

    def after_save(self, path: Path) -> None:
        self.report(path)

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
        waits = run.is_last_batch and validates and not self._looks_at_epoch_ends
        self._waits_for_validation = waits or not self._judge(trainer, strict=False)

    def next_due(self, at: StepPosition) -> float:
        return 0 if self.after_steps else super().next_due(at)

    def on_validation_end(self, trainer: Any) -> None:
        if not trainer.loop.is_fit_validation or self._looks_at_epoch_ends:
            return
        if self._waits_for_validation:
            self._waits_for_validation = False
            self._judge(trainer)
        else:
            self._judge_in_epoch(trainer)

    def on_train_epoch_end(self, trainer: Any) -> None:
        if self._looks_at_epoch_ends:
            self._judge_in_epoch(trainer)

    @property
    def _looks_at_epoch_ends(self) -> bool:
        if not self.watched:
            return False
        if self.at_epoch_end is not None:
            return self.at_epoch_end
        run = self._run
        if run.check_val_every_n_epoch != 1 or not run.enable_validation:
            return not run.enable_validation
        return bool(run.val_check_interval == 1.0)

    def _judge_in_epoch(self, trainer: Any) -> None:
        if self.watched and not self.after_steps and not (trainer.epoch + 1) % self.after_epochs:
            self._judge(trainer)

    def _judge(self, trainer: Any, strict: bool = True) -> bool:  # type: ignore[override]
        """Judge the value; False where there is none yet."""
        noting = self.with_value(trainer, strict)
        if noting is None:
            return False
        before = self._kept.ranked
        super()._judge(noting)  # type: ignore[arg-type]
        if self._kept.ranked != before:
            self.score = noting.value
            kept = {name for name, _ in self._kept.ranked}
            replaced = next((name for name, _ in reversed(before) if name not in kept), None)
            self.files.name(trainer.ranks, self._name_at(trainer), self._run.current_epoch, replaced)
        return True


_Saving.__name__ = "ModelCheckpoint"
_ALL = 10**9
"""As many of the best as there are."""


class Checkpoint(Callback):
    """The base of ``ModelCheckpoint``: ``isinstance(callback, Checkpoint)``."""


class ModelCheckpoint(WrittenCheckpoints, Checkpoint):
    """Writes checkpoints.

    They are folders, in ``checkpoints/`` of the run folder. Lightning's paths are links to those that
    Lightning would keep.

    Args:
        dirpath: Where the links are; None: ``checkpoints/`` of ``trainer.log_dir``.
        filename: Their names, ``"{epoch}-{step}"`` unless given: ``"{epoch:02d}-{val_loss:.2f}"``.
        monitor: Keep the best by this value.
        verbose: Accepted.
        save_last: Whether ``last.ckpt`` is a link to the newest one, which is always kept, to resume from.
        save_top_k: So many of the best; -1 keeps all, 0 writes none.
        save_on_exception: Save the last step when an error ends the run, where that is possible.
        save_weights_only: Write the weights alone.
        mode: ``"min"`` or ``"max"``.
        auto_insert_metric_name: Whether values in a name have their names before them.
        every_n_train_steps: Save every so many optimizer steps.
        train_time_interval: Save after so much time.
        every_n_epochs: Save every so many epochs; 1 unless another is given.
        save_on_train_epoch_end: Judge at the end of an epoch; False: after each validation; None: as
            Lightning does. What is written is written when all of a step is over.
        enable_version_counter: Whether a name that is taken gets ``-v1``; else its link is replaced.
    """

    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"

    def __init__(
        self,
        dirpath: Any = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: Any = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ) -> None:
        if monitor is None and save_top_k not in (-1, 0, 1):
            raise PacelineError(
                "ModelCheckpoint: save_top_k counts the best, and no value is monitored",
                got=f"save_top_k={save_top_k}, monitor=None",
                fix='ModelCheckpoint(monitor="val_loss", save_top_k=...)',
            )
        given = [every_n_train_steps, train_time_interval, every_n_epochs]
        if sum(one not in (None, 0) for one in given) > 1:
            raise PacelineError(
                "ModelCheckpoint: every_n_train_steps, train_time_interval and every_n_epochs exclude each "
                "other",
                fix="two ModelCheckpoint callbacks",
            )
        self.monitor, self.mode, self.save_top_k = monitor, mode, save_top_k
        self._has_dirpath = dirpath is not None
        is_local = self._has_dirpath and "://" not in str(dirpath)
        self.dirpath = os.path.realpath(os.path.expanduser(dirpath)) if is_local else dirpath
        self.filename, self.save_last = filename, save_last
        self._files = CheckpointFiles(
            filename,
            auto_insert_metric_name,
            enable_version_counter,
            self.CHECKPOINT_NAME_LAST if save_last else None,
            self._values,
        )
        self.every = train_time_interval or every_n_train_steps or f"{every_n_epochs or 1}ep"
        self._interval = train_time_interval
        self._rhythm = every_n_train_steps or None, every_n_epochs or 1
        self._save_on_train_epoch_end = save_on_train_epoch_end
        self.save_weights_only, self.save_on_exception = save_weights_only, save_on_exception
        if monitor is not None and every_n_train_steps:
            vars(self)["on_train_batch_end"] = self._after_batch
        self._reported: Path | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: not the trainer, but what was written."""
        left_out = dict.fromkeys(("_made", "_run", "_reported"))
        return super().__getstate__() | left_out | {"_of_earlier": self.written()}

    def _after_batch(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """``on_train_batch_end``: before the module's own, which may log the value that is watched."""
        if trainer.session.adapter.in_last_batch and not trainer.global_step % self._rhythm[0]:
            self._made.after_step(trainer.ours)

    @property
    def state_key(self) -> str:
        steps, epochs = self._rhythm
        return self._generate_state_key(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=steps or 0,
            every_n_epochs=0 if steps or self._interval else epochs,
            train_time_interval=self._interval,
        )

    def ours(self, trainer: Any) -> list[Any]:
        refuse_overrides(self, ModelCheckpoint)
        self._of_earlier, self._run = self.written(), trainer
        if self.save_top_k == 0:
            return []
        keeps_all = self.save_top_k < 0
        best: dict[str, Any] = (
            {} if self.monitor is None else {"keep_best": _ALL if keeps_all else self.save_top_k}
        )
        self._made = _Saving(
            self.every,
            self.monitor,
            self.mode if self.monitor is not None else None,
            None if keeps_all else 1,
            **best,
            weights_only=self.save_weights_only,
            save_on_exception=self.save_on_exception,
            name=state_name("ModelCheckpoint", self.monitor, self.every),
        )
        self._made.begin, self._made.report, self._made.files = self._begin, self._report, self._files
        self._made.by_epochs = None if self._rhythm[0] or self._interval else self._rhythm[1]
        if self.monitor is None:
            return [self._made]
        self._made.after_steps, self._made.after_epochs = self._rhythm
        self._made.at_epoch_end = self._save_on_train_epoch_end
        return [named_monitor(self._made, self.monitor, trainer)]

    def _begin(self) -> None:
        """A fit begins: settle where the links are, and forget what an earlier one wrote."""
        self._of_earlier = {}
        if not self._has_dirpath:
            self.dirpath = _directory(self._run)
        self._files.directory = None if "://" in self.dirpath else self.dirpath

    def _values(self) -> dict[str, Any]:
        """What names of files are made of."""
        return {**self._run.callback_metrics, "step": self._run.global_step}

    def _report(self, path: Path) -> None:
        """Link a checkpoint, and tell the loggers of it once: that of a fit's end may be there already."""
        if self._run.is_global_zero:
            ranked = self._made._kept.ranked
            names = [name for name, _ in ranked] if self.monitor else self._saved
            few = self.monitor is None and self.save_top_k > 0
            try:
                self._files.update(path.parent, names[-1:] if few else names, path.name)
            except OSError as error:  # a file system without links
                self._files.has_failed = True
                self._run.ours.log_line(f"warning: {path.name} has no link under Lightning's name: {error}")
        if path != self._reported and self._run.is_global_zero:
            self._reported = path
            for logger in self._run.loggers:
                logger.after_save_checkpoint(self)


def _directory(trainer: Any) -> str:
    """Where links are that no ``dirpath`` is given for: with the files of the first logger."""
    logger = trainer.logger
    if logger is None or logger.version is None:
        return os.path.join(trainer.default_root_dir, "checkpoints")
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    return os.path.join(logger.save_dir, str(logger.name), version, "checkpoints")
