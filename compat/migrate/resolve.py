"""What the names and expressions of a file refer to, from its text alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst import matchers, metadata

from .tables import Entry, Group, Library, Owner


@dataclass(frozen=True)
class Kind:
    """A class of a library: what an object is an instance of, or a class derives from."""

    library: Library
    name: str

    @property
    def owner(self) -> Owner:
        """The table of the class."""
        return self.library.owners[self.name]

    @property
    def key(self) -> tuple[str, str]:
        """The library's name and the class's."""
        return self.library.name, self.name


class Names:
    """Names as the libraries' own, through whatever imports and aliases the file has.

    Args:
        wrapper: The parsed file.
        libraries: Those to look for.
    """

    def __init__(self, wrapper: metadata.MetadataWrapper, libraries: Sequence[Library]) -> None:
        self._scopes: Mapping[Any, Any] = wrapper.resolve(metadata.ScopeProvider)
        self.libraries = libraries
        self.classes: dict[str, Kind] = {}

    def qualified(self, node: cst.CSTNode) -> list[str]:
        """Full names of an expression of names and dots, as imported; none for anything else."""
        if not is_dotted(node):
            return []
        scope = self._scopes.get(node)
        if scope is None:
            return []
        imported = metadata.QualifiedNameSource.IMPORT
        return sorted(q.name for q in scope.get_qualified_names_for(node) if q.source is imported)

    def of_library(self, node: cst.CSTNode) -> tuple[Library, str] | None:
        """The library of an expression, and its name there; "" for the library itself."""
        for name in self.qualified(node):
            found = find_library(name, self.libraries)
            if found is not None:
                return found
        return None

    def class_of(self, node: cst.CSTNode) -> Kind | None:
        """The class that an expression names: of a library, or of this file and derived from one."""
        if isinstance(node, cst.Subscript):  # Base[T]
            node = node.value
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):  # an annotation
            return self._class_in_text(node)
        found = self.of_library(node)
        if found is not None:
            library, name = found
            last = name.rpartition(".")[2]
            return Kind(library, last) if last in library.owners else None
        return self.classes.get(node.value) if isinstance(node, cst.Name) else None

    def _class_in_text(self, node: cst.BaseExpression) -> Kind | None:
        text = getattr(node, "evaluated_value", None)
        if not isinstance(text, str):
            return None
        last = text.rpartition(".")[2]
        kinds = [Kind(library, last) for library in self.libraries if last in library.owners]
        return self.classes.get(last) or (kinds[0] if len(kinds) == 1 else None)

    def read_classes(self, module: cst.Module) -> None:
        """Learn which classes of the file derive from a library's."""
        found = _Classes()
        module.visit(found)
        for _ in found.classes:  # a base may be defined later in another branch; a chain is as long as this
            before = len(self.classes)
            for node in found.classes:
                kind = next(filter(None, (self.class_of(base.value) for base in node.bases)), None)
                if kind is not None:
                    self.classes.setdefault(node.name.value, kind)
            if len(self.classes) == before:
                return


class _Classes(cst.CSTVisitor):
    def __init__(self) -> None:
        self.classes: list[cst.ClassDef] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.classes.append(node)


def find_library(name: str, libraries: Iterable[Library]) -> tuple[Library, str] | None:
    """The library that a full name belongs to, and the name without its package."""
    for library in libraries:
        for package in library.packages:
            if name == package:
                return library, ""
            if name.startswith(package + "."):
                return library, name[len(package) + 1 :]
    return None


def is_dotted(node: cst.CSTNode) -> bool:
    """Whether an expression is names and dots alone."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def dotted(node: cst.CSTNode) -> str:
    """The text of an expression of names and dots; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    return ".".join([node.value, *reversed(parts)]) if isinstance(node, cst.Name) else ""


def shown(node: cst.CSTNode) -> str:
    """An expression as a report names it: what is in brackets is left out."""
    if isinstance(node, cst.Call):
        return f"{shown(node.func)}(...)"
    if isinstance(node, cst.Subscript):
        return f"{shown(node.value)}[...]"
    if isinstance(node, cst.Attribute):
        return f"{shown(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else "(...)"


def text_of(node: cst.BaseExpression | None) -> str | None:
    """The value of a literal string."""
    found = getattr(node, "evaluated_value", None)
    return found if isinstance(found, str) else None


def code_of(node: cst.CSTNode) -> str:
    """The node's source."""
    return cst.Module([]).code_for_node(node)


class Used(cst.CSTVisitor):
    """The names that are read or set inside a node, without attributes and keywords."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


def used_in(node: cst.CSTNode) -> set[str]:
    """The names that are used inside a node."""
    used = Used()
    node.visit(used)
    return used.names


_CALLED = frozenset(("int", "float", "len", "min", "max", "abs", "round", "getattr", "get"))


class _Steady(cst.CSTVisitor):
    """Whether an expression can be written twice: nothing is called in it that may change something."""

    def __init__(self) -> None:
        self.found = True

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Call):
            self.found &= dotted(node.func).rpartition(".")[2] in _CALLED
        self.found &= not isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr, cst.BaseComp, cst.Lambda))
        return self.found


def is_steady(node: cst.BaseExpression) -> bool:
    """Whether an expression has the same value, and no effect, each time that it is written."""
    steady = _Steady()
    node.visit(steady)
    return steady.found


def in_an_operation(node: cst.BaseExpression) -> str:
    """The code of an expression as an operand: in parentheses where it is more than a name or a call."""
    code = code_of(node)
    alone = (cst.Name, cst.Attribute, cst.Subscript, cst.Call)
    return code if node.lpar or (isinstance(node, alone) and "\n" not in code) else f"({code})"


def empty_spreads(module: cst.Module) -> set[str]:
    """The names of parameters ``**name`` to which no call in the file gives anything.

    A function that the file does not call may be given something elsewhere: its parameter is not here.
    """
    functions = [one for one in module.body if isinstance(one, cst.FunctionDef) and _spread_of(one)]
    calls: dict[str, list[cst.Call]] = {one.name.value: [] for one in functions}
    for call in matchers.findall(module, matchers.Call(func=matchers.Name())):
        assert isinstance(call, cst.Call)
        calls.get(dotted(call.func), []).append(call)
    empty, before = {_spread_of(one) for one in functions}, set[str]()
    while empty != before:  # what is passed on may turn out to be filled
        before = empty
        filled = {_spread_of(one) for one in functions if _is_filled(one, calls[one.name.value], empty)}
        empty = empty - filled
    return empty


def _is_filled(function: cst.FunctionDef, calls: Sequence[cst.Call], empty: set[str]) -> bool:
    """Whether a call may give the function's ``**name`` something, or there is none to be seen."""
    taken = {one.name.value for one in (*function.params.params, *function.params.kwonly_params)}
    return not calls or any(
        arg.star == "*"
        or (arg.star == "**" and code_of(arg.value) not in empty)
        or (arg.keyword is not None and arg.keyword.value not in taken)
        for call in calls
        for arg in call.args
    )


def is_known_spread(node: cst.BaseExpression, empty: set[str], table: Mapping[str, Entry]) -> bool:
    """Whether all that ``**node`` may give to a call has the same name here.

    Args:
        node: A name, a dict display, or several with ``|``.
        empty: Names that hold nothing, or are spoken of already.
        table: What becomes of each argument.
    """
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
        return is_known_spread(node.left, empty, table) and is_known_spread(node.right, empty, table)
    if not isinstance(node, cst.Dict):
        return code_of(node) in empty
    keys = [text_of(one.key) if isinstance(one, cst.DictElement) else None for one in node.elements]
    entries = [None if key is None else table.get(key) for key in keys]
    return all(one is not None and one.group is Group.RUNS for one in entries)


def _spread_of(function: cst.FunctionDef) -> str:
    rest = function.params.star_kwarg
    return "" if rest is None else rest.name.value
