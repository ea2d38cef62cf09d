"""What a message says, part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline import PacelineError

LINES = 12
"""A message has at most so many."""


def says(text: str, *parts: str) -> None:
    """The text has all these parts; those that it lacks are named."""
    assert isinstance(text, str), "of a list, the part would have to be a whole item"
    missing = [part for part in parts if part not in text]
    assert not missing, f"without {missing}:\n{text}"


def printed(error: BaseException) -> str:
    """The message, in the promised form."""
    text = str(error)
    assert 1 < len(text.splitlines()) <= LINES, text
    return text


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The message of the PacelineError that the call must raise, in the promised form."""
    with pytest.raises(PacelineError) as caught:
        call(*arguments, **named)
    return printed(caught.value)
