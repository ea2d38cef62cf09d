"""Lightning's ``tuner`` has no counterpart: importing from here says what to use."""

from __future__ import annotations

from typing import Any

from ..translation.refusals import refuse_import


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {name: "find_learning_rate and find_batch_size of paceline.tools"})
