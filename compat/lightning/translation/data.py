"""A ``LightningDataModule`` as our loop reads it."""

from __future__ import annotations

from typing import Any

from .... import DataModule
from ....trainer.batch_hooks import BATCH_HOOKS
from .hooks import overrides

_METHODS = ("prepare_data", "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


class DataAdapter(DataModule):
    """Passes each call to the user's; ``teardown`` is called with the other hooks.

    Args:
        given: The user's.
        trainer: What its ``trainer`` is.
    """

    def __init__(self, given: Any, trainer: Any) -> None:
        self.given = given
        self._captured: dict[str, Any] = {}
        given.trainer = trainer
        for name in (*_METHODS, *BATCH_HOOKS):
            method = getattr(given, name, None)
            if callable(method) and (name in _METHODS or overrides(given, name, DataModule)):
                setattr(self, name, method)

    def setup(self, stage: str) -> None:
        setup = getattr(self.given, "setup", None)
        if callable(setup):
            setup(stage)

    def capture(self) -> None:
        """Take the user's state: Lightning asks for it before ``on_save_checkpoint``."""
        self._captured = dict(self.given.state_dict() or {})

    def state_dict(self) -> dict[str, Any]:
        return self._captured

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given.load_state_dict(state)
