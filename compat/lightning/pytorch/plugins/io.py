"""Lightning's plugins for checkpoint files; folders of checkpoints are written durably without them.

A plugin that somebody has written writes, reads and removes the ``.ckpt`` files. What a run resumes from
is the folder that a file names, where the file is an archive of torch's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from .plugin import Plugin, writes_checkpoints

__all__ = ["AsyncCheckpointIO", "CheckpointIO", "TorchCheckpointIO"]


class CheckpointIO(Plugin):
    """Writes, reads and removes checkpoint files; subclass it.

    Args:
        checkpoint_io: The plugin that does so for this one.

    Example:
        >>> class Noted(TorchCheckpointIO):
        ...     def save_checkpoint(self, checkpoint, path, storage_options=None):
        ...         super().save_checkpoint(checkpoint | {"note": "mine"}, path, storage_options)
    """

    def __init__(self, checkpoint_io: Any = None) -> None:
        self.checkpoint_io = checkpoint_io or TorchCheckpointIO

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint; on rank 0, which waits for it.

        Args:
            checkpoint: What the file is to hold.
            path: Where.
            storage_options: Those of ``trainer.save_checkpoint``.
        """
        self._inner.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read what was written there; on all ranks."""
        found: dict[str, Any] = self._inner.load_checkpoint(path, map_location, weights_only)
        return found

    def remove_checkpoint(self, path: Any) -> None:
        """Delete it; on rank 0."""
        self._inner.remove_checkpoint(path)

    def teardown(self) -> None:
        """A stage is over."""

    @property
    def _inner(self) -> Any:
        given = vars(self).get("checkpoint_io", TorchCheckpointIO)
        return given() if isinstance(given, type) else given


class TorchCheckpointIO(CheckpointIO):
    """The usual one: ``torch.save``."""

    def __init__(self) -> None:
        super().__init__()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        torch.save(checkpoint, path)

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        place = map_location or (lambda storage, _: storage)
        is_safe = weights_only is not False
        found: dict[str, Any] = torch.load(path, map_location=place, weights_only=is_safe)
        return found

    def remove_checkpoint(self, path: Any) -> None:
        with suppress(FileNotFoundError):
            Path(path).unlink()


class AsyncCheckpointIO(CheckpointIO):
    """Training continues meanwhile, which it does here without it."""


def written_io(plugins: list[Any]) -> Any:
    """The plugin for files that somebody has written, wrapped or not; None without one."""
    for given in plugins:
        one = given
        while type(one) is AsyncCheckpointIO:
            one = one.checkpoint_io
        is_known = type(one).__module__.startswith((__package__, "lightning.", "pytorch_lightning."))
        if writes_checkpoints(one) and not is_known:
            return one
    return None
