"""Hooks of Lightning's modules and callbacks: other names, other arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import libcst as cst

from ..class_facts import ClassFacts
from ..context import Context
from ..resolve import Kind, Used, code_of, dotted, text_of, used_in
from ..tables import Entry, changes, renamed, rewrite, runs
from .names import HOOKS, UPDATE

_FILLS = re.compile(r"(from_pretrained|load\w*|init\.\w+_|\.(copy|fill|zero|normal|uniform)_|\.data)\b")
_RESET = re.compile(r"\bself\.(\w+)(?:\.reset\(|\.clear\(|\s*=[^=])")
_ATTRIBUTES = re.compile(r"\bself\.(\w+)")
_OF_LIGHTNING = {
    "state_dict",
    "callbacks",
    "optimizer_states",
    "lr_schedulers",
    "epoch",
    "global_step",
    "hyper_parameters",
    "loops",
}


def method(scanner: Context, node: cst.FunctionDef, kind: Kind) -> bool:
    """Report a method of a module or a callback; False where the tables say all of it.

    Args:
        scanner: Takes what is found.
        node: The method.
        kind: Of its class.
    """
    name = node.name.value
    if kind.name == "LightningModule" and name == "training_step":
        return _training_step(scanner, node, kind)
    if kind.name == "LightningModule" and name == "configure_model" and _FILLS.search(code_of(node.body)):
        text = "it runs on the meta device, where values are lost: build these parts in __init__"
        scanner.report(node.name, kind.library, rewrite(text), name)
        return True
    if kind.name == "LightningModule" and name == "optimizer_step":
        return _optimizer_step(scanner, node, kind)
    if kind.name not in ("LightningModule", "Callback") or name in kind.owner.methods or name not in HOOKS:
        return False
    names = [parameter.name.value for parameter in node.params.params]
    in_front = 3 if kind.name == "Callback" else 1
    ours, kept, note = HOOKS[name]
    if kind.name == "Callback":
        _know_arguments(scanner, names, kind)
    problem = _problem(scanner, node, name, names[in_front : in_front + kept], names[in_front + kept :])
    star = node.params.star_arg
    any_number = isinstance(star, cst.Param) and len(names) == 1
    if problem is None and isinstance(star, cst.Param) and star.name.value in used_in(node.body):
        problem = "write its arguments one by one: docs/extending/loop.md"
    if problem is None and kind.name == "Callback" and len(names) < in_front and not any_number:
        problem = "its arguments are (self, trainer, ...): docs/extending/loop.md"
    text = f"write {_signature(ours, kind, kept, names, in_front)}" + (f"; {note}" if note else "")
    if problem is not None:
        scanner.report(node.name, kind.library, rewrite(f"{problem}" if problem else text), name)
        return True
    stays = names[in_front : in_front + kept]
    if ours == name and len(names) == 1:
        scanner.report(node.name, kind.library, runs(), name)
        return True
    new = ["self"] if any_number else ["self", *_trainer(kind, names, stays), *stays]
    _edit(scanner, node, ours, names, new, kind)
    scanner.report(node.name, kind.library, _renaming(name, ours, new), name, True)
    if note:
        scanner.report(node.name, kind.library, changes(note), name)
    return True


def _renaming(name: str, ours: str, new: Sequence[str]) -> Entry:
    if name != ours:
        return renamed(f"{ours}({', '.join(new)})")
    return rewrite(f"its arguments are ({', '.join(new)}) here")


def _signature(ours: str, kind: Kind, kept: int, names: Sequence[str], in_front: int) -> str:
    stays = list(names[in_front : in_front + kept])
    return f"{ours}({', '.join(['self', *_trainer(kind, names, stays), *stays])})"


def _trainer(kind: Kind, names: Sequence[str], stays: Sequence[str]) -> list[str]:
    if kind.name == "Callback":
        return [names[1] if len(names) > 1 else "trainer"]
    return ["trainer"] if stays else []


def _know_arguments(scanner: Context, names: Sequence[str], kind: Kind) -> None:
    for name, owner in zip(names[1:3], ("Trainer", "LightningModule"), strict=False):
        scanner.variable(name, Kind(kind.library, owner))


def _problem(
    scanner: Context, node: cst.FunctionDef, name: str, stays: Sequence[str], leave: Sequence[str]
) -> str | None:
    """Why a hook cannot be translated; None where it can."""
    ours, _, note = HOOKS[name]
    facts = scanner.classes[-1][1]
    others = [other for other in facts.methods if other != name and HOOKS.get(other, ("",))[0] == ours]
    if ours != name and (ours in facts.methods or others):
        other = ours if ours in facts.methods else others[0]
        return (
            f"write its lines into {ours}, which {other} is too"
            if other != ours
            else f"write its lines into {ours}"
        )
    touched = _shared_with_validation(node, facts) if name == "on_train_start" else set()
    if touched:
        first = "write on_train_epoch_start, under if self.trainer.global_step == 0"
        return f"on_fit_start is before the sanity pass, which uses {', '.join(sorted(touched))}: {first}"
    used = [one for one in leave if one in used_in(node.body)]
    if used:
        text = f"write {ours}, which has no {' and no '.join(used)}"
        return f"{text}; {note}" if note else text
    if name == "on_train_batch_start" and _returns(node):
        return "write on_step_start; trainer.loop.end_epoch() ends an epoch"
    if name in ("on_validation_epoch_end", "on_test_epoch_end") and _computes_logged(node, facts.logged):
        phase = ours.split("_")[1]
        short = {"validation": "val"}.get(phase, phase)
        return f'write {ours}; what was logged is reset there: read self.trainer.metrics["{short}/..."]'
    if name.endswith("_checkpoint") and stays and _keys(node, stays[0]) & _OF_LIGHTNING:
        return f"its arguments are (self, trainer, {stays[0]}); it has what hooks put there alone"
    return None


def _shared_with_validation(node: cst.FunctionDef, facts: ClassFacts) -> set[str]:
    """The attributes that a hook resets or sets, and that methods of validation use."""
    others = [code_of(one.body) for name, one in facts.methods.items() if "validation" in name]
    found = set(_RESET.findall(code_of(node.body))) & set(_ATTRIBUTES.findall("".join(others)))
    return found & facts.own - set(facts.methods)


class _Body(cst.CSTVisitor):
    def __init__(self) -> None:
        self.returns = False
        self.computed: set[str] = set()
        self.keys: set[tuple[str, str]] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_Return(self, node: cst.Return) -> None:
        self.returns = self.returns or node.value is not None

    def visit_Call(self, node: cst.Call) -> None:
        name = dotted(node.func)
        if name.startswith("self.") and name.endswith(".compute"):
            self.computed.add(name.removeprefix("self.").removesuffix(".compute"))

    def visit_Subscript(self, node: cst.Subscript) -> None:
        index = node.slice[0].slice
        key = text_of(index.value) if isinstance(index, cst.Index) else None
        if key is not None and dotted(node.value):
            self.keys.add((dotted(node.value), key))


def _read(node: cst.FunctionDef) -> _Body:
    body = _Body()
    node.body.visit(body)
    return body


def _returns(node: cst.FunctionDef) -> bool:
    return _read(node).returns


def _computes_logged(node: cst.FunctionDef, logged: set[str]) -> bool:
    return bool(_read(node).computed & logged)


def _keys(node: cst.FunctionDef, name: str) -> set[str]:
    return {key for owner, key in _read(node).keys if owner == name}


def _edit(
    scanner: Context, node: cst.FunctionDef, ours: str, names: Sequence[str], new: Sequence[str], kind: Kind
) -> None:
    """The new name and arguments, in the calls of ``super()`` too."""
    if kind.name == "Callback" and len(names) > 2:
        scanner.renamed = {names[2]: f"{names[1]}.module"}
    parameters = {parameter.name.value: index for index, parameter in enumerate(node.params.params)}

    def edit(updated: Any) -> Any:
        written = []
        for name in new:
            index = parameters.get(name)
            written.append(updated.params.params[index] if index is not None else cst.Param(cst.Name(name)))
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        parts = [one.with_changes(comma=comma) for one in written[:-1]]
        parts.append(written[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT))
        params = updated.params.with_changes(params=parts)
        if len(parts) != len(updated.params.params):  # what was laid out for more arguments
            updated = updated.with_changes(whitespace_before_params=cst.SimpleWhitespace(""))
            parts[-1] = parts[-1].with_changes(whitespace_after_param=cst.SimpleWhitespace(""))
            params = updated.params.with_changes(params=parts)
        return updated.with_changes(name=cst.Name(ours), params=params)

    scanner.found.edit(node, edit)
    calls = _SuperCalls(node.name.value)
    node.body.visit(calls)
    for call in calls.found:
        scanner.found.edit(call, _super_call(ours, new))


class _SuperCalls(Used):
    """The calls of a method's own ``super()``, and the names that are used outside of their arguments."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.found: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> bool:
        function = node.func
        if not isinstance(function, cst.Attribute) or function.attr.value != self._name:
            return True
        if not isinstance(function.value, cst.Call) or dotted(function.value.func) != "super":
            return True
        self.found.append(node)
        return False


def _super_call(ours: str, new: Sequence[str]) -> Any:
    def edit(call: cst.Call) -> cst.Call:
        given = [cst.Arg(cst.Name(name)) for name in new[1:]]
        function = cst.ensure_type(call.func, cst.Attribute).with_changes(attr=cst.Name(ours))
        return call.with_changes(func=function, args=given, whitespace_before_args=cst.SimpleWhitespace(""))

    return edit


def _optimizer_step(scanner: Context, node: cst.FunctionDef, kind: Kind) -> bool:
    """``optimizer_step(self, epoch, batch_idx, optimizer, closure)``, of which the first two go."""
    params = node.params
    names = [parameter.name.value for parameter in params.params]
    calls = _SuperCalls("optimizer_step")
    node.body.visit(calls)
    more = params.posonly_params or params.kwonly_params or params.star_kwarg
    is_plain = len(names) == 5 and not more and not isinstance(params.star_arg, cst.Param)
    if not is_plain or calls.names & set(names[1:3]):
        scanner.report(node.name, kind.library, rewrite(UPDATE), "optimizer_step")
        return True
    new = [names[0], *names[3:]]
    _edit(scanner, node, "optimizer_step", names, new, kind)
    scanner.report(
        node.name, kind.library, _renaming("optimizer_step", "optimizer_step", new), "optimizer_step", True
    )
    return True


def _training_step(scanner: Context, node: cst.FunctionDef, kind: Kind) -> bool:
    names = [parameter.name.value for parameter in node.params.params]
    if len(names) > 3:
        what = "automatic_optimization = False and self.optimizers()"
        text = f"it gets (self, batch, batch_idx); several optimizers need {what}"
        scanner.report(node.name, kind.library, rewrite(text), "training_step")
        return True
    return False
