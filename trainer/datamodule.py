"""Data of a run in one object."""

from __future__ import annotations

from typing import Any

from ..callbacks.trainer_view import TrainerView
from ..errors import PacelineError
from ..other_trainers import advice
from .batch_hooks import BatchHooks
from .module_parts.recorded import Recorded, record


class DataModule(BatchHooks, Recorded):
    """Dataloaders and how to prepare them. Every method is optional.

    The same methods on the module serve too; dataloaders given to ``fit`` come first. A batch passes
    ``on_before_batch_transfer``, ``transfer_batch_to_device`` and ``on_after_batch_transfer``.

    Example:
        >>> class Numbers(DataModule):
        ...     def setup(self, stage):
        ...         self.data = [(torch.randn(4, 2), torch.randn(4, 1))]
        ...     def train_dataloader(self):
        ...         return self.data
        >>> run = trainer.fit(Net(), datamodule=Numbers())
    """

    _trainer: TrainerView | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Record the arguments of the outermost constructor, for ``hparams``."""
        found = super().__new__(cls)
        vars(found)["_hparams"] = record(cls, found, args, kwargs, lambda value: False)
        return found

    def __getattr__(self, name: str) -> Any:
        if any(name in vars(base) for base in type(self).__mro__):
            return object.__getattribute__(self, name)  # a property failed: its own error, again
        hint = advice("datamodule.", name)
        who = type(self).__name__
        raise AttributeError(f"{who!r} object has no attribute {name!r}" + (hint and f"; {hint}"))

    @property
    def trainer(self) -> TrainerView:
        """The trainer of the current run: ``self.trainer.epoch`` in ``train_dataloader``, say.

        Raises:
            PacelineError: outside fit, validate, test and predict.
        """
        if self._trainer is None:
            raise PacelineError(
                f"{type(self).__name__}.trainer exists only while a Trainer runs with it",
                code="not-running",
                fix="use it in setup or later, not in __init__",
            )
        return self._trainer

    def prepare_data(self) -> None:
        """Download or convert, once per node. Set no attributes here."""

    def setup(self, stage: str) -> None:
        """Build datasets, on every rank. ``stage``: ``fit``, ``validate``, ``test`` or ``predict``."""

    def train_dataloader(self) -> Any:
        """The training data; None where there is none."""

    def val_dataloader(self) -> Any:
        """The validation data: one dataloader, or a list or dict of them."""

    def test_dataloader(self) -> Any:
        """The test data."""

    def predict_dataloader(self) -> Any:
        """The data to predict."""

    def teardown(self, stage: str) -> None:
        """Release what ``setup`` took."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
