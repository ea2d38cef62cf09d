"""Refuses arguments of ``fit``, ``validate``, ``test`` and ``predict`` that are none."""

from __future__ import annotations

from typing import Any

from ...common.argument_checks import refuse_unknown
from ...other_trainers import names_in
from .arguments import TrainerArguments

_FIT = ("train_dataloader", "val_dataloader", "datamodule", "resume", "allow", "decay")
_EVALUATION = ("dataloader", "datamodule", "weights")


def refuse_arguments(method: str, unknown: dict[str, Any]) -> None:
    """Refuse them, if there are any, with the names that were meant.

    Raises:
        PacelineError: one report of all of them.
    """
    if not unknown:
        return
    of_trainer = {name: _of_trainer(name) for name in TrainerArguments.model_fields}
    for name, ours in names_in("Trainer").items():
        if not ours.startswith(("fit(", "trainer.")):
            of_trainer[name] = ours if " " in ours else _of_trainer(ours.partition("=")[0])
    known = _FIT if method == "fit" else _EVALUATION
    refuse_unknown(method, unknown, known, of_trainer | dict(names_in(method)))


def _of_trainer(argument: str) -> str:
    return f"it is an argument of the Trainer: Trainer({argument}=...)"
