"""Modules and data modules."""

from __future__ import annotations

from .datamodule import LightningDataModule
from .module import LightningModule

__all__ = ["LightningDataModule", "LightningModule"]
