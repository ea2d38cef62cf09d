"""The methods for data that modules and data modules have in common."""

from __future__ import annotations

from typing import Any


class DataMethods:
    """Every method is optional."""

    def prepare_data(self) -> None:
        """Download, once per node."""

    def setup(self, stage: str) -> None:
        """Before a stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``; on every rank."""

    def teardown(self, stage: str) -> None:
        """After a stage."""

    def train_dataloader(self) -> Any:
        """The training data."""

    def val_dataloader(self) -> Any:
        """The validation data."""

    def test_dataloader(self) -> Any:
        """The test data."""

    def predict_dataloader(self) -> Any:
        """The data to predict."""
