"""Changes of single nodes, and the transformer that applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst

from .found import Edit, Found

Put = list[tuple[str | None, str | None]]
"""What takes an argument's place: keyword (None: by position) and code (None: the value it has)."""


def named(name: str) -> Edit:
    """Put a dotted name in the place of an expression."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        around = {"lpar": node.lpar, "rpar": node.rpar}
        return cst.parse_expression(name).with_changes(**around)

    return edit


def attribute(name: str) -> Edit:
    """Another attribute, or several with dots between them, of the same object."""

    def edit(node: cst.Attribute) -> cst.BaseExpression:
        value = node.value
        *more, last = name.split(".")
        for part in more:
            value = cst.Attribute(value, cst.Name(part))
        return node.with_changes(value=value, attr=cst.Name(last))

    return edit


def removed(_: cst.CSTNode) -> Any:
    """Take a small statement away."""
    return cst.RemoveFromParent()


def arguments(
    plan: Sequence[Put | None] | None, extra: Sequence[tuple[str, str]] = (), first: str = ""
) -> Edit:
    """Other arguments of a call.

    Args:
        plan: For each argument what takes its place, None leaves it as it is; None: all are left, however
            many an edit before has left.
        extra: Keyword arguments that are added.
        first: An argument by position that is added in front.
    """

    def edit(call: cst.Call) -> cst.Call:
        written: list[cst.Arg] = []
        puts = [None] * len(call.args) if plan is None else plan
        for argument, put in zip(call.args, puts, strict=True):
            written += [argument] if put is None else [_put(argument, *one) for one in put]
        if first:
            written.insert(0, cst.Arg(cst.parse_expression(first), comma=_comma()))
        for keyword, code in extra:
            written.append(_keyword(keyword, cst.parse_expression(code)))
        if len(written) > 1:
            written = [_in_parentheses(one) for one in written]
        return call.with_changes(args=_with_commas(call.args, written))

    return edit


def _in_parentheses(argument: cst.Arg) -> cst.Arg:
    """A generator that was the only argument of a call has no parentheses: the call's were enough."""
    value = argument.value
    if not isinstance(value, cst.GeneratorExp) or value.lpar:
        return argument
    return argument.with_changes(value=value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))


def _put(argument: cst.Arg, keyword: str | None, code: str | None) -> cst.Arg:
    value = argument.value if code is None else cst.parse_expression(code)
    if keyword is None:
        return argument.with_changes(value=value, keyword=None)
    return _keyword(keyword, value).with_changes(
        comma=argument.comma, whitespace_after_arg=argument.whitespace_after_arg
    )


def _keyword(keyword: str, value: cst.BaseExpression) -> cst.Arg:
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(keyword), equal=tight)


def _comma() -> cst.Comma:
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _with_commas(before: Sequence[cst.Arg], written: list[cst.Arg]) -> list[cst.Arg]:
    """The layout of the call as it was: one argument a line, and whether a comma ends the last one."""
    if not written or not before:
        return written
    last = before[-1]
    between = next((one.comma for one in before[:-1] if isinstance(one.comma, cst.Comma)), _comma())
    done = []
    for one in written[:-1]:
        own = isinstance(one.comma, cst.Comma) and one.comma is not last.comma
        comma = one.comma if own else between
        done.append(one.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace("")))
    end = {"comma": last.comma, "whitespace_after_arg": last.whitespace_after_arg}
    return [*done, written[-1].with_changes(**end)]


class Rewriter(cst.CSTTransformer):
    """Applies what was found, from the inside out, and writes the comments."""

    def __init__(self, found: Found, before: Mapping[cst.CSTNode, list[cst.BaseStatement]]) -> None:
        super().__init__()
        self._found = found
        self._before = before
        self._carried: list[cst.EmptyLine] = []
        self._given: dict[cst.CSTNode, list[cst.EmptyLine]] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._carried and hasattr(node, "leading_lines"):
            self._given[node] = self._carried
            self._carried = []
        return super().on_visit(node)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        node: Any = super().on_leave(original_node, updated_node)
        for edit in self._found.edits.get(original_node, ()):
            if isinstance(node, cst.CSTNode):
                node = edit(node)
        marks = self._found.marks.get(original_node)
        if marks and isinstance(node, cst.CSTNode):
            node = _marked(node, marks)
        if original_node in self._given and isinstance(node, cst.CSTNode):
            lines = [*self._given[original_node], *node.leading_lines]  # type: ignore[attr-defined]
            node = node.with_changes(leading_lines=lines)
        if isinstance(node, cst.FormattedString) and len(node.start.lstrip("frFR")) == 1:
            node = node.with_changes(
                parts=[part.visit(_OtherQuotes(node.start[-1])) for part in node.parts]
            )
        if isinstance(node, cst.SimpleStatementLine) and not node.body and original_node.body:
            node = self._emptied(node)
        return self._with_imports(original_node, node)

    def _emptied(self, node: cst.SimpleStatementLine) -> Any:
        """A statement of which nothing is left; comments above it stay, above the next one."""
        if any(line.comment for line in node.leading_lines):
            self._carried = list(node.leading_lines)
        return cst.RemoveFromParent()

    def _with_imports(self, original: cst.CSTNode, node: Any) -> Any:
        new = self._before.get(original)
        if not new:
            return node
        old = list(original.leading_lines)  # type: ignore[attr-defined]
        if not isinstance(node, cst.CSTNode):  # they take the place of the import that was here
            self._carried = []
            return cst.FlattenSentinel([new[0].with_changes(leading_lines=old), *new[1:]])
        if not is_import(original):  # they end the imports above
            return cst.FlattenSentinel([*new, node])
        rest = node.with_changes(leading_lines=node.leading_lines[len(old) :])  # type: ignore[attr-defined]
        return cst.FlattenSentinel([new[0].with_changes(leading_lines=old), *new[1:], rest])


class _OtherQuotes(cst.CSTTransformer):
    """Inside of an f-string, strings do not have its quotes: before Python 3.12 they would end it."""

    def __init__(self, outer: str) -> None:
        super().__init__()
        self._outer, self._inner = outer, {'"': "'", "'": '"'}[outer]

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        text = updated_node.value
        if updated_node.quote != self._outer or self._inner in text:
            return updated_node
        return updated_node.with_changes(value=text.replace(self._outer, self._inner))


def is_import(node: cst.CSTNode) -> bool:
    """Whether a statement begins with an import."""
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    return isinstance(node.body[0], (cst.Import, cst.ImportFrom))


def _marked(node: Any, marks: Sequence[str]) -> Any:
    present = {line.comment.value for line in node.leading_lines if line.comment}
    comments = [f"# paceline: {text}" for text in dict.fromkeys(marks)]
    new = [cst.EmptyLine(comment=cst.Comment(one)) for one in comments if one not in present]
    return node.with_changes(leading_lines=[*node.leading_lines, *new])
