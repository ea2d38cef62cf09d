"""What a user's function asks for, compared with what it is called with, before it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import PacelineError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

# What an argument's name says it is. Other names say nothing, and may stand for anything.
_KINDS = {
    "pl_module": "module",
    "lightning_module": "module",
    "model": "module",
    "module": "module",
    "trainer": "trainer",
    "stage": "stage",
    "batches": "batches",
    "batch": "batch",
    "dataloader_iter": "dataloader_iter",
    "batch_idx": "batch_idx",
    "batch_index": "batch_idx",
    "dataloader_idx": "dataloader_idx",
    "outputs": "outputs",
    "output": "output",
    "optimizer": "optimizer",
    "optimizer_idx": "optimizer_idx",
    "closure": "closure",
    "optimizer_closure": "closure",
    "state": "state",
    "checkpoint": "state",
    "error": "error",
    "exception": "error",
    "scheduler": "scheduler",
    "metric": "metric",
    "device": "device",
    "loss": "loss",
    "epoch": "epoch",
    "logs": "logs",
    "metrics": "metrics",
    "args": "args",
    "control": "control",
    "logger": "logger",
}
_ALSO = {("outputs", "output")}  # one batch's outputs, as Lightning names what an evaluation step returned
_IS = {
    "batches": "the list of the step's micro-batches",
    "outputs": "the list of the outputs of the step's micro-batches",
    "state": "the dict that is saved for this object",
    "batch_idx": "the number of the batch",
    "dataloader_idx": "the number of the dataloader",
    "closure": "the closure that computes the gradients",
    "stage": 'the stage, such as "fit"',
}
_INSTEAD = {
    "module": "the module is trainer.module",
    "epoch": "the epoch is trainer.epoch",
    "metrics": "values are in trainer.metrics",
    "logs": "values are in trainer.metrics",
    "args": "settings are in trainer.settings",
    "control": 'trainer.stop("why") ends the run',
    "logger": "trainer.log(name, value) logs",
}
_SEVERAL_OPTIMIZERS = (
    "several optimizers need manual optimization: set self.automatic_optimization = False, take "
    "them from self.optimizers(), and call self.manual_backward(loss) and optimizer.step()"
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A method that a run cannot call as it is, or would never call."""

    what: str
    fix: str
    got: str | None = None
    allowed: str | None = None
    meant: str | None = None

    def error(self) -> PacelineError:
        """Where it is the only one."""
        given = {} if self.got is None else {"got": self.got}
        return PacelineError(
            self.what, code="hook-mismatch", allowed=self.allowed, meant=self.meant, fix=self.fix, **given
        )

    def line(self) -> str:
        """Where there are several."""
        meant = f"; did you mean {self.meant}?" if self.meant else ";"
        return f"{self.what}{meant} fix: {self.fix}"


def wrong_arguments(
    who: str, name: str, function: Callable[..., Any], given: tuple[str, ...], least: int = 0
) -> Problem | None:
    """What is wrong with the arguments of a bound method, if anything.

    Args:
        who: The class that has it.
        name: The method.
        function: The bound method.
        given: What it is called with, in order.
        least: So many of them it must take; it may leave out those that follow.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return None
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    empty = inspect.Parameter.empty
    named = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is empty]
    wanted = [p.name for p in positional if p.default is empty] + named
    kinds = [_KINDS.get(p.name) for p in positional]
    own = ("self",) if inspect.ismethod(function) else ()  # a function that an object was given has none
    fix = f"def {name}({', '.join((*own, *given))})"
    if "optimizer_idx" in wanted and "training_step" in name:
        fix = _SEVERAL_OPTIMIZERS
    elif "trainer" in given:
        notes = [_INSTEAD[kind] for kind in kinds if kind in _INSTEAD]
        fix = "; ".join((fix, *dict.fromkeys(notes)))
    gets = ", ".join(given) or "nothing"
    if len(wanted) > len(given) or named:
        what = f"{who}.{name} asks for more arguments than it is called with"
        return Problem(what=what, got=", ".join(wanted), allowed=gets, fix=fix)
    takes_all = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    if len(positional) < least and not takes_all:
        what = f"{who}.{name} takes fewer arguments than it is called with"
        got = ", ".join(p.name for p in positional) or "nothing"
        return Problem(what=what, got=got, allowed=gets, fix=fix)
    for parameter, kind, ours in zip(positional, kinds, given, strict=False):
        if kind is not None and kind != ours and (kind, ours) not in _ALSO:
            is_ours = _IS.get(ours, f"the {ours}")
            what = f"{who}.{name}: its argument {parameter.name!r} would be {is_ours}"
            got = ", ".join(p.name for p in positional)
            return Problem(what=what, got=got, allowed=gets, fix=fix)
    return None
