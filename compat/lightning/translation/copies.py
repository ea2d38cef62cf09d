"""What copies and pickles of Lightning's objects hold: nothing of a run."""

from __future__ import annotations

from typing import Any


def state_without(owner: Any, *names: str) -> dict[str, Any]:
    """The attributes of an object but for these, for its ``__getstate__``."""
    return {name: value for name, value in vars(owner).items() if name not in names}
