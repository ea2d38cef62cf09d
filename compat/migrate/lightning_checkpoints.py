"""The paths that a ``ModelCheckpoint`` has: here the run of the Trainer has them that it was given to."""

from __future__ import annotations

import libcst as cst

from . import edits
from .context import Context
from .remembered import GivenCheckpoint
from .resolve import dotted, shown
from .tables import renamed
from .translation import literal

_CLASS = ("lightning", "ModelCheckpoint")
_PATHS = {"best_model_path": "best", "last_model_path": "latest"}


def assigned(scanner: Context, node: cst.Assign) -> None:
    """Remember what is in a variable: ``best = ModelCheckpoint(...)``, ``Trainer(callbacks=[best])``."""
    call, name = node.value, dotted(node.targets[0].target)
    scanner.checkpoints.pop(name, None)
    if not isinstance(call, cst.Call) or not name:
        return
    kind = scanner.kind_of(call)
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword}
    if kind is not None and kind.key == ("lightning", "Trainer"):
        _give(scanner, name, given.get("callbacks"))
    elif kind is None or kind.key != _CLASS:
        if dotted(call.func).rpartition(".")[2][:1].isupper():  # a class that is none of Lightning's
            scanner.checkpoints[name] = GivenCheckpoint(_function(scanner), "")
    elif not any(arg.star for arg in call.args):
        monitors = len(call.args) > len(given) or literal(given.get("monitor")) is not None
        scanner.checkpoints[name] = GivenCheckpoint(_function(scanner), "best" if monitors else "latest")


def _function(scanner: Context) -> cst.FunctionDef | None:
    return scanner.functions[-1] if scanner.functions else None


def _give(scanner: Context, trainer: str, callbacks: cst.BaseExpression | None) -> None:
    for before in scanner.checkpoints.values():
        if before.trainer == trainer:  # the variable holds another trainer from here on
            before.trainer = None
    if isinstance(callbacks, cst.List):
        elements = [one.value for one in callbacks.elements]
    else:
        elements = [] if callbacks is None else [callbacks]
    if any(not _is_sure(scanner, one) for one in elements):
        return
    kinds = [(one, scanner.kind_of(one)) for one in elements]
    found = [one for one, kind in kinds if kind is not None and kind.key == _CLASS]
    known = scanner.checkpoints.get(dotted(found[0])) if len(found) == 1 else None
    if known is not None and known.function is _function(scanner):
        known.trainer = trainer


def _is_sure(scanner: Context, node: cst.BaseExpression) -> bool:
    """Whether it is seen if this is a checkpoint: not where a variable comes from somewhere else."""
    return isinstance(node, cst.Call) or dotted(node) in scanner.checkpoints


def path(scanner: Context, node: cst.Attribute) -> bool:
    """``best.best_model_path``: True where it is translated."""
    known = scanner.checkpoints.get(dotted(node.value))
    if known is None or known.trainer is None or not known.best or known.function is not _function(scanner):
        return False
    kind = scanner.kind_of(node.value)
    if kind is None or kind.key != _CLASS or node.attr.value not in _PATHS:
        return False
    which = _PATHS[node.attr.value]
    trainer = known.trainer
    _translate(scanner, node, node.value, trainer, known.best if which == "best" else which)
    return True


def of_trainer(scanner: Context, node: cst.Attribute, callback: cst.Attribute) -> bool:
    """``trainer.checkpoint_callback.best_model_path``: True where it is translated."""
    if node.attr.value not in _PATHS:
        return False
    scanner.handled(callback)
    _translate(scanner, node, callback.value, dotted(callback.value), _PATHS[node.attr.value])
    return True


def _translate(
    scanner: Context, node: cst.Attribute, owner: cst.BaseExpression, trainer: str, which: str
) -> None:
    """Put the path of a trainer's run in the place of a callback's, which belongs to an owner."""
    kind = scanner.kind_of(owner)
    assert kind is not None
    new = f"{trainer}.run.{which}"
    scanner.found.edit(node, edits.named(new))
    scanner.report(node.attr, kind.library, renamed(new, "a path"), shown(node), True)
