"""What ``paceline check`` asks a script for."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "PACELINE_CHECK"
"""Names what ``paceline check`` asks a script for: ``paceline.Trainer`` is a ``CheckTrainer`` then."""


@dataclass(frozen=True)
class CheckRequest:
    """How a script is to be checked.

    Args:
        out: The file that takes the report, as JSON; its folder is for all that is written.
        seconds: How long a fit may train.
        later_seconds: How long the script may run after its first fit.
    """

    out: str
    seconds: float
    later_seconds: float = 30.0

    def variables(self) -> dict[str, str]:
        """What the script's environment has to have."""
        return {VARIABLE: json.dumps(asdict(self))}


def requested() -> CheckRequest:
    """What the command line asked this process for."""
    return CheckRequest(**json.loads(os.environ[VARIABLE]))
