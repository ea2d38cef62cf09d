"""What a scan remembers of the variables of a file."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from .resolve import Kind


@dataclass
class GivenCheckpoint:
    """A ``ModelCheckpoint`` in a variable, or another object.

    Args:
        function: Where the variable is; None: in the module.
        best: What its best checkpoint is in the run, without a monitor the newest; "" of another object.
        trainer: The one Trainer that it is given to, so far.
    """

    function: cst.FunctionDef | None
    best: str
    trainer: str | None = None


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
