"""The Trainer of a script that ``paceline replay`` runs again: of all its runs only one step is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...common.json_text import json_text
from ...trainer.trainer import Trainer
from ..debug.replay import alone, replay_step, requested
from .repeated_trainer import RepeatedTrainer


class ReplayTrainer(RepeatedTrainer):
    """A ``Trainer`` on one device that writes nothing: it replays the step and prints it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**alone(arguments, requested().accelerator))

    @property
    def wanted_fit(self) -> int:
        return requested().fit

    def repeat(self, module: Any, data: tuple[Any, Any, Any], allow: str | Sequence[str]) -> None:
        request = requested()
        found = replay_step(Trainer, self.settings, module, data, request, allow)
        if request.out is None:
            print(found, flush=True)
        else:
            Path(request.out).write_text(json_text(asdict(found)), encoding="utf-8")
