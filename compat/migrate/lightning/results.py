"""What ``trainer.test`` and ``trainer.validate`` return, and names of metrics in it: one dict here."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ..context import Context
from ..remembered import Result
from ..resolve import Kind, code_of, dotted, shown, text_of
from ..tables import rewrite
from ..translation import full_name, literal

_PHASES = 'names begin with the phase: "train/...", "val/...", "test/..."'
_SEVERAL = 'it returns one dict of all dataloaders here: names of the second are "test/1/...", or its own'
_LOADER = "with several dataloaders names have that of the loader, as in val/0/acc: write it in monitor="
_OF_ONE = 'a value of one of several dataloaders has its number: "test/0/acc"'
_EVALUATIONS = {"test": "test", "validate": "val"}


def metric(
    scanner: Context,
    node: cst.BaseExpression,
    key: str,
    kind: Kind | None,
    owner: str,
    phase: str | None = None,
) -> None:
    """Report or translate the name of a value, in an expression that is one.

    Args:
        scanner: Takes what is found.
        node: The name's expression.
        key: The name.
        kind: The trainer's class.
        owner: Whose values, as the report names it.
        phase: That of an evaluation, of which all the values are; None: unknown.
    """
    assert kind is not None
    new = full_name(key, phase)
    title = f'{owner}["{key}"]'
    if new is None:
        bare = (
            key.removeprefix("train_").removeprefix("train/").removesuffix("_epoch").removesuffix("_step")
        )
        text = f'"train/{bare}_epoch" is the mean of the epoch, "train/{bare}" that of the last log window'
        known = key.startswith("train")
        scanner.report(node, kind.library, rewrite(text if known else _PHASES), title)
    elif _is_of_one_loader(scanner, key, phase):
        scanner.report(node, kind.library, rewrite(_OF_ONE), title)
    elif new != key:
        scanner.found.edit(node, lambda _: cst.SimpleString(f'"{new}"'))
        scanner.report(node, kind.library, rewrite(f'it is called "{new}" here'), title, True)


def _is_of_one_loader(scanner: Context, key: str, phase: str | None) -> bool:
    """Whether a value was logged with ``add_dataloader_idx=False``, or may have been."""
    sharing = [facts for facts in scanner.facts.values() if facts.shared_mark]
    if any(key in facts.shared_names for facts in sharing):
        return True
    logged = any(f'"{key}"' in code_of(body) for facts in sharing for body in facts.methods.values())
    return phase is not None and "/dataloader_idx_" not in key and bool(sharing) and not logged


def assigned(scanner: Context, node: cst.Assign) -> None:
    """``results = trainer.test(...)``, and ``(results,) = trainer.test(...)``: remember the variable."""
    target = node.targets[0].target
    scanner.results.pop(dotted(target), None)
    result = _returned(scanner, node.value)
    if isinstance(node.value, cst.Subscript) and _is_first(node.value):
        first_of = _returned(scanner, node.value.value)
        result = replace(first_of, is_list=False) if first_of else None
    if result is None or len(node.targets) > 1:
        return
    if isinstance(target, cst.Name):
        scanner.results[target.value] = result
        return
    if not isinstance(target, (cst.Tuple, cst.List)) or len(target.elements) != 1:
        return
    inner = target.elements[0].value
    if isinstance(inner, cst.Name):
        scanner.results[inner.value] = replace(result, is_list=False)
        first = node.targets[0].with_changes(target=inner)
        scanner.found.edit(node, lambda updated: updated.with_changes(targets=[first]))
        scanner.report(node, result.kind.library, _ONE, shown(node.value), True)


_ONE = rewrite("it returns one dict, not a list of them", "")


def subscript(scanner: Context, node: cst.Subscript) -> None:
    """``trainer.test(...)[0]``, ``results[0]`` and ``results["val_loss"]``."""
    index, inner = node.slice[0].slice, node.value
    if not isinstance(index, cst.Index):
        return
    result = _result(scanner, inner)
    if result is not None and result.is_list:
        if literal(index.value) == 0:
            _without_index(scanner, node, result)
        else:
            scanner.report(node, result.kind.library, rewrite(_SEVERAL), shown(node))
        return
    key = text_of(index.value)
    result = _values(scanner, inner, key) if key is not None else None
    if result is not None and key is not None:
        metric(scanner, index.value, key, result.kind, shown(inner), result.phase)


def contains(scanner: Context, node: cst.Comparison) -> None:
    """``"val_loss" in results[0]``."""
    key, target = text_of(node.left), node.comparisons[0]
    if key is None or len(node.comparisons) > 1 or not isinstance(target.operator, (cst.In, cst.NotIn)):
        return
    result = _values(scanner, target.comparator, key)
    if result is not None:
        metric(scanner, node.left, key, result.kind, shown(target.comparator), result.phase)


def counted(scanner: Context, node: cst.BaseExpression) -> None:
    """``len(results)``, and ``for values in results``: there is one dict here."""
    result = _result(scanner, node)
    if result is not None and result.is_list:
        scanner.report(node, result.kind.library, rewrite(_SEVERAL), shown(node))


def _values(scanner: Context, node: cst.BaseExpression, key: str) -> Result | None:
    """The evaluation of which an expression is one dict: ``results[1]`` where the key names its loader."""
    if not isinstance(node, cst.Subscript):
        result = _result(scanner, node)
        return None if result is None or result.is_list else result
    result = _result(scanner, node.value)
    if result is None or not result.is_list or _is_first(node):
        return result if result is not None and result.is_list else None
    if "/dataloader_idx_" not in key:
        return None
    _without_index(scanner, node, result)
    scanner.handled(node)
    return result


def _without_index(scanner: Context, node: cst.Subscript, result: Result) -> None:
    scanner.found.edit(node, lambda updated: updated.value)
    scanner.report(node, result.kind.library, _ONE, f"{shown(node.value)}[0]", True)


def _is_first(node: cst.Subscript) -> bool:
    index = node.slice[0].slice
    return isinstance(index, cst.Index) and literal(index.value) == 0


def _result(scanner: Context, node: cst.BaseExpression) -> Result | None:
    """What an expression has of an evaluation."""
    return scanner.results.get(dotted(node)) or _returned(scanner, node)


def _returned(scanner: Context, node: cst.BaseExpression) -> Result | None:
    """What ``trainer.test(...)`` returns."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    kind, phase = scanner.kind_of(node.func.value), _EVALUATIONS.get(node.func.attr.value)
    is_trainer = kind is not None and kind.key == ("lightning", "Trainer")
    return Result(kind, phase, True) if is_trainer and kind and phase else None


def logged(scanner: Context, node: cst.Call, kind: Kind) -> None:
    """``self.log(..., add_dataloader_idx=False)``: what is monitored has another name. Once a class."""
    method = cst.ensure_type(node.func, cst.Attribute).attr.value
    if kind.key != ("lightning", "LightningModule") or method not in ("log", "log_dict"):
        return
    chosen = [arg for arg in node.args if arg.keyword and arg.keyword.value == "add_dataloader_idx"]
    facts = scanner.classes[-1][1] if scanner.classes else None
    if facts is None or not chosen or literal(chosen[0].value) is not False:
        return
    key = text_of(node.args[0].value)
    facts.shared_names |= {key} if key is not None else set()
    if not facts.shared_mark:
        title = f"{shown(node.func)}(add_dataloader_idx=False)"
        facts.shared_mark = f"{title}: {_LOADER}"
        scanner.report(node, kind.library, rewrite(_LOADER), title)


def monitored(scanner: Context, name: cst.BaseExpression | None) -> None:
    """Mark where such a value is monitored, or may be, and not where it is logged."""
    key = text_of(name)
    for facts in scanner.facts.values():
        if facts.shared_mark and name is not None and (key is None or key in facts.shared_names):
            scanner.move_mark(facts.shared_mark)
