"""JSON that every parser reads."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any) -> str:
    r"""A value as JSON; what is not finite is a string, since JSON has no number for it.

    Args:
        value: Plain data; anything else in it is written as ``str`` has it.

    Example:
        >>> json_text({"loss": float("nan")})
        '{\n "loss": "nan"\n}'
    """
    return json.dumps(_finite(value), indent=1, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
