"""What ``paceline check`` asks a script for."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "PACELINE_CHECK"
"""Names what ``paceline check`` asks a script for: ``paceline.Trainer`` is a ``CheckTrainer`` then."""


@dataclass(frozen=True)
class CheckRequest:
    """How a script's first fit is to be checked.

    Args:
        out: The file that takes the report, as JSON.
        seconds: How long the fit may train.
    """

    out: str
    seconds: float

    def variables(self) -> dict[str, str]:
        """What the script's environment has to have."""
        return {VARIABLE: json.dumps(asdict(self))}


def requested() -> CheckRequest:
    """What the command line asked this process for."""
    return CheckRequest(**json.loads(os.environ[VARIABLE]))
