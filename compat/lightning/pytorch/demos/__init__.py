"""Lightning's ``demos`` has no counterpart: importing from here says what to use."""

from __future__ import annotations

from typing import Any

from ...translation.refusals import refuse_import


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {name: "a model and data of your own"})
