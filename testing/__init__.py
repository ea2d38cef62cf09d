"""Checks for the tests of other packages: whether a strategy keeps the promises of the Trainer."""

from __future__ import annotations

from .check import check_strategy

__all__ = ["check_strategy"]
