"""What ``Trainer(plugins=...)`` takes: each plugin says which argument of ``Trainer`` it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .....errors import PacelineError

_WAYS = {
    "Precision": "a Precision of paceline.strategies in Trainer(precision=...)",
    "ClusterEnvironment": "the variables that torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR",
}


class Plugin:
    """One of Lightning's plugins."""

    def as_arguments(self) -> dict[str, Any]:
        """The arguments of ``Trainer`` that it stands for."""
        return {}


def writes_checkpoints(plugin: Any) -> bool:
    """Whether it is a ``CheckpointIO``, ours or Lightning's."""
    return any(base.__name__ == "CheckpointIO" for base in type(plugin).__mro__)


def arguments_of(given: Any) -> dict[str, Any]:
    """The arguments that plugins stand for.

    Args:
        given: One, several or None.

    Raises:
        PacelineError: for a plugin that somebody has written, and for what is none.

    Example:
        >>> from paceline.compat.lightning.pytorch.plugins import HalfPrecision
        >>> arguments_of([HalfPrecision("bf16-true")])
        {'precision': 'bf16-true'}
    """
    if given is None:
        return {}
    found: dict[str, Any] = {}
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    several: list[Any] = [*given] if is_list else [given]
    for one in several:
        if writes_checkpoints(one):
            continue
        written = [base for base in type(one).__mro__ if base.__module__.startswith(__package__)]
        if type(one) in written[:1]:
            found |= one.as_arguments()
            continue
        kinds = [base.__name__ for base in written if base.__name__ in _WAYS]
        raise PacelineError(
            f"Trainer(plugins=...) takes no {type(one).__name__}" + (f", a {kinds[0]}" if kinds else ""),
            code="wrong-object",
            fix=_WAYS[kinds[0]] if kinds else "precision=, strategy= or sync_batchnorm=",
        )
    return found
