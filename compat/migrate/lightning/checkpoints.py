"""What programs do with a ``ModelCheckpoint`` and its files: paths, scores, weights; names of several."""

from __future__ import annotations

from typing import Any

import libcst as cst

from .. import edits
from ..context import Context
from ..remembered import Checkpoints
from ..resolve import Kind, code_of, dotted, in_an_operation, is_steady, shown, text_of
from ..tables import Library, renamed, rewrite
from ..translation import literal

_CLASS = "ModelCheckpoint"
_PATHS = {"best_model_path": "best", "last_model_path": "latest"}
_WHICH = "it is best where this callback monitors a value, else latest"
_NO_FILE = "a checkpoint is a folder here: Net.load_from_checkpoint(path, strict=False) reads its weights"


class _Made(cst.CSTVisitor):
    """The calls of ``ModelCheckpoint``, and whether each is made several times."""

    def __init__(self) -> None:
        self.calls: dict[cst.Call, bool] = {}
        self._repeats = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        self._repeats += isinstance(node, (cst.BaseComp, cst.For))
        return super().on_visit(node)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        super().on_leave(original_node)
        self._repeats -= isinstance(original_node, (cst.BaseComp, cst.For))

    def visit_Call(self, node: cst.Call) -> None:
        if dotted(node.func).rpartition(".")[2] == _CLASS:
            self.calls[node] = self._repeats > 0


def checkpoints_of(module: cst.Module) -> Checkpoints:
    """Read the calls of ``ModelCheckpoint`` in a file."""
    made, found = _Made(), Checkpoints()
    module.visit(made)
    for number, (call, repeats) in enumerate(made.calls.items()):
        monitor = next((a.value for a in call.args if a.keyword and a.keyword.value == "monitor"), None)
        unseen = any(arg.star for arg in call.args) or sum(arg.keyword is None for arg in call.args) > 2
        found.monitors[call] = unseen or literal(monitor) is not None
        if repeats or number:
            text = text_of(monitor)
            if text is not None or monitor is None or not is_steady(monitor):
                found.names[call] = f'"{(text or "checkpoint").replace("/", "-")}-{number + 1}"'
            else:
                found.names[call] = f'{in_an_operation(monitor)}.replace("/", "-")'
    return found


def assigned(scanner: Context, node: cst.Assign) -> None:
    """Remember ``best = ModelCheckpoint(...)``; report weights out of a file."""
    name = dotted(node.targets[0].target)
    if not name:
        return
    known = scanner.checkpoints
    key = (scanner.functions[-1] if scanner.functions else None, name)
    known.variables.pop(key, None)
    if isinstance(node.value, cst.Call) and node.value in known.monitors:
        known.variables[key] = known.monitors[node.value]
    if scanner.functions and _is_file(node.value):
        body = code_of(scanner.functions[-1])
        if f'{name}["state_dict"]' in body or f"{name}['state_dict']" in body:
            _report_file(scanner, node.value)


def member(scanner: Context, node: cst.Attribute) -> Kind | None:
    """The class of ``x.best_model_path``, whatever ``x`` is: no other one has this."""
    library = _lightning(scanner)
    is_one = node.attr.value in (*_PATHS, "best_model_score")
    return Kind(library, _CLASS) if library is not None and is_one else None


def path(scanner: Context, node: cst.Attribute) -> bool:
    """``best.best_model_path`` where it is the newest, or may be: True where that is said."""
    library, known = _lightning(scanner), scanner.checkpoints
    if node.attr.value != "best_model_path" or library is None or all(known.monitors.values()):
        return False
    key = (scanner.functions[-1] if scanner.functions else None, dotted(node.value))
    monitors = known.variables.get(key, None if any(known.monitors.values()) else False)
    if monitors:
        return False
    entry = rewrite(_WHICH) if monitors is None else renamed("latest", "a path")
    if entry.new:
        scanner.found.edit(node, edits.attribute(entry.new))
    scanner.report(node.attr, library, entry, shown(node), bool(entry.new))
    return True


def of_trainer(scanner: Context, node: cst.Attribute, callback: cst.Attribute, kind: Kind) -> bool:
    """``trainer.checkpoint_callback.best_model_path``: True where it is translated."""
    which = _PATHS.get(node.attr.value)
    if which is None:
        return False
    monitors = scanner.checkpoints.monitors.values()
    names = [which]
    if which == "best" and not any(monitors):  # a callback that another file makes may monitor a value
        names = ["latest"] if monitors else ["best", "latest"]

    def edit(updated: Any) -> cst.BaseExpression:
        run = f"{code_of(updated.value.value)}.run"
        code = " or ".join(f"{run}.{name}" for name in names)
        return cst.parse_expression(code if len(names) == 1 else f"({code})")

    scanner.handled(callback)
    scanner.found.edit(node, edit)
    new = " or ".join(f"trainer.run.{name}" for name in names)
    scanner.report(node.attr, kind.library, renamed(new, "a path"), shown(node), True)
    return True


def subscript(scanner: Context, node: cst.Subscript) -> None:
    """Report ``torch.load(path)["state_dict"]``."""
    index = node.slice[0].slice
    if isinstance(index, cst.Index) and text_of(index.value) == "state_dict" and _is_file(node.value):
        _report_file(scanner, node.value)


def _is_file(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "torch.load"


def _report_file(scanner: Context, node: cst.CSTNode) -> None:
    """Of a program for Lightning, such a file may be its checkpoint."""
    library = _lightning(scanner)
    if library is not None:
        scanner.report(node, library, rewrite(_NO_FILE), 'torch.load(...)["state_dict"]')


def _lightning(scanner: Context) -> Library | None:
    return next((one for one in scanner.found.libraries if one.name == "lightning"), None)
