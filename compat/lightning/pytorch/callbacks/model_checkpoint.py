"""``ModelCheckpoint`` with Lightning's arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ..... import PacelineError
from ...translation.monitor import named_monitor, state_name
from .callback import Callback
from .checkpoint_files import CheckpointFiles
from .judged_saving import JudgedSaving
from .overrides import refuse_overrides
from .saving_methods import SavingMethods
from .written_checkpoints import WrittenCheckpoints

_ALL = 10**9
"""As many of the best as there are."""


class Checkpoint(Callback):
    """The base of ``ModelCheckpoint``: ``isinstance(callback, Checkpoint)``."""


class ModelCheckpoint(WrittenCheckpoints, SavingMethods, Checkpoint):
    """Writes checkpoints.

    They are folders, in ``checkpoints/`` of the run folder. Those that Lightning would keep have a
    ``.ckpt`` file beside, under Lightning's name: its weights, hyperparameters and what hooks have added,
    as ``torch.load`` reads them. A run resumes from the folder that a file names.

    Args:
        dirpath: Where the files are; None: ``checkpoints/`` of ``trainer.log_dir``.
        filename: Their names, ``"{epoch}-{step}"`` unless given: ``"{epoch:02d}-{val_loss:.2f}"``.
        monitor: Keep the best by this value.
        verbose: Accepted, and kept.
        save_last: Whether the newest of those with a file is ``last.ckpt`` as well; ``"link"``: as a link.
        save_top_k: So many of the best; -1 keeps all, 0 none, but for ``last.ckpt`` with ``save_last``.
        save_on_exception: Save the last step when an error ends the run, where that is possible.
        save_weights_only: Write the weights alone.
        mode: ``"min"`` or ``"max"``.
        auto_insert_metric_name: Whether values in a name have their names before them.
        every_n_train_steps: Save every so many optimizer steps.
        train_time_interval: Save after so much time.
        every_n_epochs: Save every so many epochs; 1 unless another is given.
        save_on_train_epoch_end: Judge at the end of an epoch; False: after each validation; None: as
            Lightning does. What is written is written when all of a step is over.
        enable_version_counter: Whether a name that is taken gets ``-v1``; else its file is replaced.
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
                code="missing-argument",
                got=f"save_top_k={save_top_k}, monitor=None",
                fix='ModelCheckpoint(monitor="val_loss", save_top_k=...)',
            )
        given = [every_n_train_steps, train_time_interval, every_n_epochs]
        if sum(one not in (None, 0) for one in given) > 1:
            raise PacelineError(
                "ModelCheckpoint: every_n_train_steps, train_time_interval and every_n_epochs exclude each "
                "other",
                code="conflicting-arguments",
                fix="two ModelCheckpoint callbacks",
            )
        self.monitor, self.mode, self.save_top_k = monitor, mode, save_top_k
        self._has_dirpath = dirpath is not None
        is_local = self._has_dirpath and "://" not in str(dirpath)
        self.dirpath = os.path.realpath(os.path.expanduser(dirpath)) if is_local else dirpath
        self.filename, self.save_last = filename, save_last
        self._files = CheckpointFiles(
            filename,
            self.format_checkpoint_name,
            enable_version_counter,
            self._name_of_last,
            save_last == "link",
            self._values,
        )
        self.every = train_time_interval or every_n_train_steps or f"{every_n_epochs or 1}ep"
        self._train_time_interval, self._every_n_train_steps = train_time_interval, every_n_train_steps or 0
        by_epochs = not (every_n_train_steps or train_time_interval)
        self._every_n_epochs = (every_n_epochs or 1) if by_epochs else 0
        self._reached, self.verbose = {}, verbose
        self.auto_insert_metric_name = auto_insert_metric_name
        self._save_on_train_epoch_end = save_on_train_epoch_end
        self.save_weights_only, self.save_on_exception = save_weights_only, save_on_exception
        if self._watched is not None and every_n_train_steps and not self.overrides("on_train_batch_end"):
            vars(self)["on_train_batch_end"] = self._after_batch
        self._reported: Path | None = None
        self._removed: set[str] = set()

    @property
    def has_folder(self) -> bool:
        """Whether ``dirpath`` was given, and is on the disk."""
        return self._has_dirpath and "://" not in str(self.dirpath)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: not the trainer, but what was written."""
        left_out = dict.fromkeys(("_made", "_run", "_reported"))
        return super().__getstate__() | left_out | {"_of_earlier": self.written()}

    def _name_of_last(self) -> str | None:
        return self.CHECKPOINT_NAME_LAST if self.save_last else None

    def _after_batch(self, *given: Any) -> None:
        SavingMethods.on_train_batch_end(self, *given)

    @property
    def state_key(self) -> str:
        return self._generate_state_key(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=self._every_n_train_steps,
            every_n_epochs=self._every_n_epochs,
            train_time_interval=self._train_time_interval,
        )

    def ours(self, trainer: Any) -> list[Any]:
        refuse_overrides(self, ModelCheckpoint)
        self._of_earlier, self._run = self.written(), trainer
        if self.save_top_k == 0 and not self.save_last:
            return []
        self._files.only_last = self.save_top_k == 0
        keeps_all = self.save_top_k < 0
        best: dict[str, Any] = (
            {} if self._watched is None else {"keep_best": _ALL if keeps_all else self.save_top_k}
        )
        self._made = JudgedSaving(
            self.every,
            self._watched,
            self.mode if self._watched is not None else None,
            None if keeps_all else 1,
            **best,
            weights_only=self.save_weights_only,
            save_on_exception=self.save_on_exception,
            name=state_name(type(self).__name__, self.monitor, self.every),
        )
        self._made.owner, self._made.files = self, self._files
        self._made.by_epochs = self._every_n_epochs or None
        self._made.at_epoch_end = self._save_on_train_epoch_end
        self._files.plugin = trainer.checkpoint_io
        self._made.background = not (self.overrides("_save_checkpoint") or trainer.checkpoint_io)
        self._files.removes = not self.overrides("_remove_checkpoint")
        if self._watched is None:
            return [self._made]
        self._made.after_steps = self._every_n_train_steps or None
        self._made.after_epochs = self._every_n_epochs or 1
        return [named_monitor(self._made, self._watched, trainer)]

    def begin(self) -> None:
        """A fit begins: settle where the files are, and forget what an earlier one wrote."""
        self._of_earlier, self._removed = {}, set()
        if not self._has_dirpath:
            self.dirpath = _directory(self._run)
        self._files.directory = None if "://" in self.dirpath else self.dirpath

    def _values(self) -> dict[str, Any]:
        """What names of files are made of."""
        return {**self._run.callback_metrics, "step": self._run.global_step}

    def follow(self, trainer: Any, name: str) -> Callable[[], None]:
        """What writes the file of a checkpoint that is begun now, when it exists."""
        content = self._run.session.content_at(trainer)
        if self.save_weights_only:
            content = content.of_weights()
        if not self._run.is_global_zero or self._folder is None:
            return lambda: None
        return partial(self._files.update, self._folder, self._with_files, name, content)

    @property
    def _with_files(self) -> list[str]:
        """Those that Lightning would keep."""
        names = [one for one, _ in self._made._kept.ranked] if self._watched else self._saved
        return names[-1:] if self._watched is None and self.save_top_k >= 0 else names

    def report(self, path: Path) -> None:
        """Tell the loggers of a checkpoint once: that of a fit's end may be there already."""
        if self._files.problem is not None:
            self._run.ours.log_line(f"warning: {self._files.problem}")
        if path == self._reported:
            return
        self._reported = path
        self._call_overrides(path.name)
        for logger in self._run.loggers if self._run.is_global_zero else ():
            logger.after_save_checkpoint(self)

    def _call_overrides(self, name: str) -> None:
        own, last = self._files.paths.get(name), self._files.last_path
        saves, self._written_now = self.overrides("_save_checkpoint"), (own or "", last)
        if saves and own:
            self._save_checkpoint(self._run, own)
        if self.overrides("_remove_checkpoint"):
            gone = self._files.superfluous(self._with_files) - self._removed
            self._removed |= gone
            for path in sorted(gone):
                self._remove_checkpoint(self._run, path)
        if saves and last and name in self._with_files:
            self._save_checkpoint(self._run, last)


def _directory(trainer: Any) -> str:
    """Where files are that no ``dirpath`` is given for: with the files of the first logger."""
    logger = trainer.logger
    if logger is None or logger.version is None:
        return os.path.join(trainer.default_root_dir, "checkpoints")
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    return os.path.join(
        logger.save_dir or trainer.default_root_dir, str(logger.name), version, "checkpoints"
    )
