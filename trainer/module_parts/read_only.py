"""Attributes that a run sets: an assignment says so, where Python would speak of a setter."""

from __future__ import annotations

from typing import Any, TypeVar

from ...errors import PacelineError

_OWN = "give your attribute another name"
_FIXES = {
    "device": "leave it out: the Trainer moves the module, and self.device is where its weights are",
    "hparams": "leave it out: the constructor's arguments are in it; self.hparams.NAME = ... adds another",
    "trainer": _OWN,
    "global_step": _OWN,
    "epoch": _OWN,
}
C = TypeVar("C", bound=type)


def refusing_assignments(cls: C) -> C:
    """The class, whose properties of a run say what to do when a user assigns to them."""
    for name, fix in _FIXES.items():
        setattr(cls, name, getattr(cls, name).setter(_refusing(name, fix)))
    return cls


def _refusing(name: str, fix: str) -> Any:
    def refuse(self: Any, value: Any) -> None:
        raise PacelineError(
            f"{type(self).__name__}.{name} can only be read: the run sets it",
            code="read-only-attribute",
            fix=fix,
        )

    return refuse
