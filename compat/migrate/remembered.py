"""What a scan remembers of the variables and calls of a file."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from .resolve import Kind


@dataclass
class Checkpoints:
    """The ``ModelCheckpoint(...)`` calls of a file.

    Args:
        monitors: Whether each monitors a value: what its best checkpoint is without one is the newest.
        names: The code of a name for each that may not be the only one of its Trainer.
        variables: Whether the one in a variable monitors a value, by the variable's function and name.
    """

    monitors: dict[cst.Call, bool] = field(default_factory=dict)
    names: dict[cst.Call, str] = field(default_factory=dict)
    variables: dict[tuple[cst.FunctionDef | None, str], bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a variable has of an evaluation.

    Args:
        kind: The trainer's class.
        phase: Of the evaluation: ``"val"`` or ``"test"``.
        is_list: Whether it is the list that Lightning returns, and not the first dict in it.
    """

    kind: Kind
    phase: str
    is_list: bool
