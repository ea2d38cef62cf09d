"""Lightning's plugins for writing checkpoints, which here are written durably and in a thread anyway.

A subclass is accepted, and has no effect.
"""

from __future__ import annotations

from typing import Any

from .plugin import Plugin

__all__ = ["AsyncCheckpointIO", "CheckpointIO", "TorchCheckpointIO"]


class CheckpointIO(Plugin):
    """Writes checkpoints.

    Args:
        checkpoint_io: Accepted: what is written does not depend on it.
    """

    def __init__(self, checkpoint_io: Any = None) -> None:
        self.checkpoint_io = checkpoint_io


class TorchCheckpointIO(CheckpointIO):
    """The usual one."""


class AsyncCheckpointIO(CheckpointIO):
    """Training continues meanwhile, which it does here without it."""
