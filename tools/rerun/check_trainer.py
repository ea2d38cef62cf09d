"""The Trainer of a script that ``paceline check`` runs: its first fit is looked at, and ends the script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...common.json_text import json_text
from ..check.examine import examine
from .check_request import requested
from .repeated_trainer import RepeatedTrainer


class CheckTrainer(RepeatedTrainer):
    """A ``Trainer`` on one device that writes nothing but what it has found."""

    def __init__(self, **arguments: Any) -> None:
        alone = {"devices": 1, "num_nodes": 1, "strategy": "auto", "max_restarts": 0, "progress": False}
        super().__init__(**arguments | alone)

    @property
    def wanted_fit(self) -> int:
        return 1

    def repeat(self, module: Any, data: tuple[Any, Any, Any], allow: str | Sequence[str]) -> None:
        request = requested()
        report = examine(self, module, data, seconds=request.seconds)
        Path(request.out).write_text(json_text(asdict(report)), encoding="utf-8")
