"""What subclasses of ``ModelCheckpoint`` override of Lightning's, and what they call of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...translation.hooks import overrides
from .callback import Callback
from .checkpoint_files import formatted


class SavingMethods(Callback):
    """Part of ``ModelCheckpoint``: its hooks, and the methods that these call in Lightning.

    A checkpoint is written when all of a step is over. What an override does after ``super()`` sees it as
    Lightning's does in ``_save_checkpoint`` and ``_remove_checkpoint``; in the others it is only judged.
    """

    FILE_EXTENSION: str
    filename: str | None
    dirpath: Any
    save_weights_only: bool
    auto_insert_metric_name: bool
    monitor: str | None
    save_top_k: int
    _every_n_train_steps: int
    _made: Any
    _reached: dict[str, int]
    _written_now: tuple[str, ...] = ()

    @property
    def _watched(self) -> str | None:
        return self.monitor if self.save_top_k else None

    def overrides(self, *names: str) -> bool:
        """Whether a subclass has one of these methods."""
        return any(overrides(type(self), name, SavingMethods) for name in names)

    def passes(self, hook: str, step: int) -> bool:
        """Whether Lightning would save: a subclass may call ``super()`` in some steps alone."""
        return not self.overrides(hook) or self._reached.get(hook) == step

    def _reach(self, hook: str, trainer: Any) -> None:
        self._reached = {**self._reached, hook: trainer.ours.global_step}

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Where ``every_n_train_steps`` counts: before the module's own, which may log the value."""
        self._reach("on_train_batch_end", trainer)
        if self._watched is None or self._every_n_train_steps == 0:
            return
        if trainer.session.adapter.in_last_batch and not trainer.global_step % self._every_n_train_steps:
            self._made.after_step(trainer.ours)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Where a value is judged at the end of an epoch."""
        self._reach("on_train_epoch_end", trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Where a value is judged after a validation."""
        self._reach("on_validation_end", trainer)

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
        """What a subclass calls in the place of ``super().on_train_epoch_end``, and of the others."""
        for hook in ("on_train_batch_end", "on_train_epoch_end", "on_validation_end"):
            self._reach(hook, trainer)

    _save_last_checkpoint = _save_topk_checkpoint

    def _should_skip_saving_checkpoint(self, trainer: Any) -> bool:
        return bool(trainer.fast_dev_run or trainer.sanity_checking or trainer.state.fn != "fit")

    def _should_save_on_train_epoch_end(self, trainer: Any) -> bool:
        return bool(self._made.looks_at_epoch_ends)

    def _monitor_candidates(self, trainer: Any) -> dict[str, Tensor]:
        """The values that may be watched, and that names are made of."""
        position = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        return {**trainer.callback_metrics, **{name: torch.tensor(n) for name, n in position.items()}}

    def _update_best_and_save(
        self, current: Tensor, trainer: Any, monitor_candidates: dict[str, Tensor]
    ) -> None:
        """A value is among the best."""
        self._made.rank()

    def format_checkpoint_name(
        self,
        metrics: Mapping[str, Any],
        filename: str | None = None,
        ver: int | None = None,
        prefix: str | None = None,
    ) -> str:
        """The path of a checkpoint's file.

        Args:
            metrics: The values in its name.
            filename: A template; that of the callback, or ``"{epoch}-{step}"``, unless given.
            ver: The number of those with the same name.
            prefix: Before the name.

        Example:
            >>> from paceline.compat.lightning.pytorch.callbacks import ModelCheckpoint
            >>> ModelCheckpoint(filename="{epoch:02d}").format_checkpoint_name({"epoch": 3})
            'epoch=03.ckpt'
        """
        template = filename or self.filename or "{epoch}-{step}"
        name = formatted(template, metrics, self.auto_insert_metric_name)
        parts = [prefix, name, None if ver is None else f"v{ver}"]
        name = "-".join(part for part in parts if part is not None) + self.FILE_EXTENSION
        return os.path.join(self.dirpath, name) if self.dirpath else name

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        """A checkpoint has been written; at any other path it is written now."""
        if os.path.realpath(filepath) not in map(os.path.realpath, self._written_now):
            trainer.save_checkpoint(filepath, self.save_weights_only)

    def _remove_checkpoint(self, trainer: Any, filepath: str) -> None:
        """Delete the file of a checkpoint that is not among the best any more."""
        if trainer.is_global_zero:
            with suppress(FileNotFoundError):
                Path(filepath).unlink()
