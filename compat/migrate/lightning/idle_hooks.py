"""Hooks that are never called here, or belong into another one, and do nothing: they are removed."""

from __future__ import annotations

import re

import libcst as cst

from .. import edits
from ..context import Context
from ..resolve import Kind, dotted
from ..tables import dropped
from .names import HOOKS

_NEVER = "it would never be called here"
_DECIDE = ("configure_", "optimizer_", "get_", "tbptt_")
_MODES = ("_model_eval", "_model_train", "_model_zero_grad", "_step_end")


def removed(scanner: Context, node: cst.FunctionDef, kind: Kind) -> bool:
    """Remove a method: True where it is one whose call and whose absence are the same.

    Args:
        scanner: Takes what is found.
        node: The method.
        kind: Of its class.
    """
    name, facts = node.name.value, scanner.classes[-1][1]
    if kind.name not in ("LightningModule", "LightningDataModule", "Callback") or node.decorators:
        return False
    if facts.statements < 2 or not _would_be_marked(name, kind, set(facts.methods)):
        return False
    calls_super = _calls_super(node)
    decides = name.startswith(_DECIDE) or name.endswith(_MODES)
    if not calls_super and (decides or facts.inherited & {name} or not _is_empty(node)):
        return False
    if len(re.findall(rf"\.{name}\b", scanner.code)) > calls_super:  # something calls it
        return False
    facts.statements -= 1
    scanner.found.edit(node, edits.removed)
    scanner.report(node.name, kind.library, dropped("it does nothing"), name, True)
    return True


def _would_be_marked(name: str, kind: Kind, methods: set[str]) -> bool:
    entry = kind.owner.methods.get(name)
    if entry is not None:
        return entry.text.startswith(_NEVER)
    if name not in HOOKS:
        return name.startswith("on_") and kind.owner.other_method is not None
    ours = HOOKS[name][0]
    return ours != name and any(HOOKS.get(one, (one,))[0] == ours for one in methods - {name})


def _statements(node: cst.FunctionDef) -> list[cst.CSTNode]:
    body = node.body.body
    lines = [one.body if isinstance(one, cst.SimpleStatementLine) else [one] for one in body]
    return [small for line in lines for small in line]


def _is_empty(node: cst.FunctionDef) -> bool:
    """Whether a body is ``pass``, ``...`` or a docstring."""
    empty = (cst.Ellipsis, cst.SimpleString, cst.ConcatenatedString)
    return all(
        isinstance(one, cst.Pass) or (isinstance(one, cst.Expr) and isinstance(one.value, empty))
        for one in _statements(node)
    )


def _calls_super(node: cst.FunctionDef) -> bool:
    """Whether a body only calls the method of ``super()``, with the arguments it got."""
    found = _statements(node)
    value = found[0].value if len(found) == 1 and isinstance(found[0], (cst.Expr, cst.Return)) else None
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return False
    holder = value.func.value
    if value.func.attr.value != node.name.value or not isinstance(holder, cst.Call):
        return False
    given = [arg.keyword.value if arg.keyword else dotted(arg.value) for arg in value.args]
    same = [dotted(arg.value) for arg in value.args]
    names = [parameter.name.value for parameter in node.params.params[1:]]
    return dotted(holder.func) == "super" and given == same == names
