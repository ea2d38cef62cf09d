"""The Trainer of a script that ``paceline doctor`` runs: its first fit is one step, and ends the script."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...strategies import make_strategy
from ...trainer.trainer import Trainer
from .repeated_trainer import RepeatedTrainer

VARIABLE = "PACELINE_ONE_STEP"
"""Names what ``paceline doctor`` asks a script for: ``paceline.Trainer`` is a ``OneStepTrainer`` then."""


@dataclass(frozen=True)
class OneStepRequest:
    """How the step is to be taken.

    Args:
        note: The file that takes what the fit came to, as JSON.
        devices: On how many.
        accelerator: Where to compute.
        strategy: By name; None for the script's own.
        seconds: The longest time without progress.
    """

    note: str
    devices: int
    accelerator: str
    strategy: str | None
    seconds: int

    def variables(self) -> dict[str, str]:
        """What the script's environment has to have."""
        return {VARIABLE: json.dumps(asdict(self))}


def requested() -> OneStepRequest:
    """What the command line asked this process for."""
    return OneStepRequest(**json.loads(os.environ[VARIABLE]))


class OneStepTrainer(RepeatedTrainer):
    """A ``Trainer`` that takes one step on the devices it is asked for, and writes nothing but its note."""

    def __init__(self, **arguments: Any) -> None:
        request = requested()
        changes: dict[str, Any] = {"fast_dev_run": 1, "progress": False, "num_nodes": 1, "max_restarts": 0}
        changes |= {"accelerator": request.accelerator, "timeouts": f"{request.seconds}s"}
        if request.strategy is not None:
            changes["strategy"] = request.strategy
        own = arguments.get("strategy", "auto")
        alone = request.strategy is None and own != "auto" and not make_strategy(own).many_ranks
        if not alone:  # a strategy of one device that the script has chosen stays on it
            changes["devices"] = request.devices
        super().__init__(**arguments | changes)

    @property
    def wanted_fit(self) -> int:
        return 1

    def repeat(self, module: Any, data: tuple[Any, Any, Any], allow: str | Sequence[str]) -> None:
        Trainer.fit(self, module, *data, allow=allow)
        if self.is_global_zero:
            found = {
                "world_size": self.world_size,
                "strategy": self.strategy.name,
                "steps": self.global_step,
            }
            Path(requested().note).write_text(json.dumps(found))
