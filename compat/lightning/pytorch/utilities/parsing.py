"""``AttributeDict``, and the arguments of a constructor."""

from __future__ import annotations

from typing import Any

from .....trainer.module_parts.recorded import HParams as AttributeDict
from ...translation.hyperparameters import arguments_of

__all__ = ["AttributeDict", "get_init_args"]


def get_init_args(frame: Any) -> dict[str, Any]:
    """The arguments of a constructor, as they are now.

    Args:
        frame: That of the ``__init__`` which runs; of any other function: nothing.
    """
    return arguments_of(frame) if frame.f_code.co_name == "__init__" else {}
