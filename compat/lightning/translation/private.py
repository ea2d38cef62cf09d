"""In the place of modules that are private to Lightning: constants, and messages for all other names."""

from __future__ import annotations

import platform
import sys
from typing import Any

from .refusals import refuse_import

_IS_WINDOWS = platform.system() == "Windows"
_IS_INTERACTIVE = hasattr(sys, "ps1") or bool(sys.flags.interactive)
_TORCH_GREATER_EQUAL_2_2 = _TORCH_GREATER_EQUAL_2_3 = True


def __getattr__(name: str) -> Any:
    return refuse_import(
        "lightning", name, {name: "what Trainer shows in its place: this name is private to Lightning"}
    )
