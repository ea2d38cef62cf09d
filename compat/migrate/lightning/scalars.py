"""Whether an expression is a single number, as far as its text says."""

from __future__ import annotations

import libcst as cst

from ..resolve import dotted

_REDUCED = frozenset(["mean", "sum", "item", "float", "int", "len", "norm", "prod", "std", "var", "numel"])
_WORDS = frozenset(
    ["loss", "acc", "accuracy", "error", "entropy", "criterion", "objective", "rate", "count", "n", "total"]
)


def is_scalar(node: cst.BaseExpression, function: cst.FunctionDef) -> bool:
    """Whether an expression is a single number: what its parts and names say, and their assignments.

    Args:
        node: The expression.
        function: Where it is; of a name in it, the last assignment in the function counts.
    """
    return _is_scalar(node, _assigned(function), 0)


def returns_of(function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """What a function returns: the expressions of its ``return`` statements."""
    reader = _Body()
    function.body.visit(reader)
    return reader.returned


def _is_scalar(node: cst.BaseExpression, assigned: dict[str, cst.BaseExpression], depth: int) -> bool:
    if isinstance(node, cst.BaseNumber):
        return True
    if isinstance(node, cst.BinaryOperation):
        return all(_is_scalar(one, assigned, depth) for one in (node.left, node.right))
    if isinstance(node, cst.UnaryOperation):
        return _is_scalar(node.expression, assigned, depth)
    if isinstance(node, cst.Call):
        return _is_reduced(node, assigned, depth)
    name = dotted(node).rpartition(".")[2]
    if _WORDS & set(name.lower().split("_")):
        return True
    value = assigned.get(name) if isinstance(node, cst.Name) else None
    return value is not None and depth < 5 and _is_scalar(value, assigned, depth + 1)


def _is_reduced(node: cst.Call, assigned: dict[str, cst.BaseExpression], depth: int) -> bool:
    function = node.func
    name = function.attr.value if isinstance(function, cst.Attribute) else dotted(function)
    if name in _REDUCED:
        return True
    if name in ("detach", "cpu", "clone", "to") and isinstance(function, cst.Attribute):
        return _is_scalar(function.value, assigned, depth)
    return bool(_WORDS & set(name.lower().split("_")))


def _assigned(function: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    reader = _Body()
    function.body.visit(reader)
    return reader.found


class _Body(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: dict[str, cst.BaseExpression] = {}
        self.returned: list[cst.BaseExpression] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_Return(self, node: cst.Return) -> None:
        self.returned += [node.value] if node.value is not None else []

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                self.found[target.target.value] = node.value
