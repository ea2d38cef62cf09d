"""One pass over a file: what of the libraries' names is where, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import libcst as cst
from libcst import metadata

from . import edits
from .class_facts import ClassFacts, facts_of
from .found import Finding, Found
from .imports import Imports
from .lightning import checkpoints, expressions, files, idle_hooks, methods, results
from .lightning.arguments import CALLS, POSITIONS
from .remembered import Result
from .resolve import Kind, Names, code_of, dotted, empty_spreads, is_known_spread, shown
from .tables import Entry, Group, Library, Owner, rewrite
from .translation import Translation, put_of

_STATEMENTS = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
_SPREAD = "the names in it have to be those of here; what it has too much is named when it runs"


class Scanner(cst.CSTVisitor):
    """Finds what is in a file.

    Args:
        wrapper: The parsed file.
        names: What its names refer to.
    """

    def __init__(self, wrapper: metadata.MetadataWrapper, names: Names) -> None:
        super().__init__()
        self._positions: Mapping[Any, Any] = wrapper.resolve(metadata.PositionProvider)
        self.names, self.found, self.code = names, Found(), wrapper.module.code
        self.imports = Imports(wrapper, names, self)
        self.classes: list[tuple[Kind | None, ClassFacts]] = []
        self.functions: list[cst.FunctionDef] = []
        self.renamed: dict[str, str] = {}
        self.fitted: dict[str, str] = {}
        self.started: set[str] = set()
        self.path_like: set[cst.CSTNode] = set()
        self.results: dict[str, Result] = {}
        self.checkpoints = checkpoints.checkpoints_of(wrapper.module)
        self._variables: list[dict[str, Kind]] = [{}]
        self.facts: dict[str, ClassFacts] = {}
        self._returned: dict[str, list[Kind | None]] = {}
        self._statements: list[cst.CSTNode] = []
        self._handled: set[cst.CSTNode] = set()
        self._moved: set[str] = set()
        self._spread = empty_spreads(wrapper.module)  # others are marked once

    # -- what the parts of the scan use ----------------------------------------------------------

    def report(
        self,
        node: cst.CSTNode,
        library: Library,
        entry: Entry,
        name: str,
        automatic: bool = False,
        marked: bool = True,
    ) -> None:
        """As ``Context.report`` says."""
        line = self._positions[node].start.line
        found = Finding(line, entry.group, library.name, name, entry.text, automatic)
        self.found.findings.append(found)
        self.use(library)
        to_do = entry.group is Group.REWRITE and not automatic and marked
        if to_do and library.name == "lightning":
            self.found.marks.setdefault(self._statements[-1], []).append(f"{name}: {entry.text}")

    def move_mark(self, text: str) -> None:
        """As ``Context.move_mark`` says."""
        if text not in self._moved:  # each place that uses it has the mark from then on
            self._moved.add(text)
            for marks in self.found.marks.values():
                marks[:] = [one for one in marks if one != text]
        self.found.marks.setdefault(self._statements[-1], []).append(text)

    def use(self, library: Library) -> None:
        """The file is code for this library."""
        if library not in self.found.libraries:
            self.found.libraries.append(library)

    def handled(self, node: cst.CSTNode) -> None:
        """Report nothing more about this node itself."""
        self._handled.add(node)

    def kind_of(self, node: cst.CSTNode) -> Kind | None:
        """The library's class of an expression's value; of a class, itself."""
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Attribute) and node.func.attr.value == "load_from_checkpoint":
                return self.kind_of(node.func.value)
            returned = self._returned.get(dotted(node.func), ())
            return returned[0] if len(returned) == 1 else self.names.class_of(node.func)
        text = dotted(node)
        if not text:
            return None
        if text in ("self", "cls") and self.classes:
            return self.classes[-1][0]
        known = next((v[text] for v in reversed(self._variables) if text in v), None)
        if known is not None or isinstance(node, cst.Name):
            return known or self.names.class_of(node)
        assert isinstance(node, cst.Attribute)
        holder = self.kind_of(node.value)
        kind = holder.owner.kinds.get(node.attr.value) if holder else None
        return Kind(holder.library, kind) if holder and kind else self.names.class_of(node)

    def named(self, kind: str) -> list[str]:
        """As ``Context.named`` says."""
        return [name for name, one in self._variables[-1].items() if one.key == ("lightning", kind)]

    def variable(self, name: str, kind: Kind) -> None:
        """A name of the current function holds an object of this class."""
        self._variables[-1][name] = kind

    # -- the visits ------------------------------------------------------------------------------

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _STATEMENTS):
            self._statements.append(node)
        return super().on_visit(node)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        super().on_leave(original_node)
        if isinstance(original_node, _STATEMENTS):
            self._statements.pop()

    def visit_Import(self, node: cst.Import) -> bool:
        self.imports.visit_import(node)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        self.imports.visit_from(node)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        kind = next(filter(None, (self.names.class_of(base.value) for base in node.bases)), None)
        facts = facts_of(node, len(self.functions))
        for base in node.bases:
            self.imports.mark_use(base.value)
            inherited = self.facts.get(dotted(base.value))
            if inherited is not None:
                facts.own |= inherited.own
                facts.inherited |= inherited.inherited | set(inherited.methods)
                facts.logged |= inherited.logged
        self.facts[node.name.value] = facts
        self.classes.append((kind, facts))
        self._variables.append({})

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.classes.pop()
        self._variables.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool | None:
        for decorator in node.decorators:
            decorator.visit(self)
        in_class = bool(self.classes) and len(self.functions) == self.classes[-1][1].depth
        before = self.renamed
        self._variables.append({})
        self.functions.append(node)
        for parameter in [*node.params.params, *node.params.kwonly_params]:
            kind = self.names.class_of(parameter.annotation.annotation) if parameter.annotation else None
            if kind is not None:
                self.variable(parameter.name.value, kind)
        if in_class and self.classes[-1][0] is not None:
            self._method(node, self.classes[-1][0])
        for part in (node.params, node.returns, node.body):
            if part is not None:
                part.visit(self)
        self.functions.pop()
        self._variables.pop()
        self.renamed = before
        return False

    def _method(self, node: cst.FunctionDef, kind: Kind) -> None:
        is_lightning = kind.library.name == "lightning"
        if is_lightning and (idle_hooks.removed(self, node, kind) or methods.method(self, node, kind)):
            return
        name = node.name.value
        entry = kind.owner.methods.get(name)
        if entry is None and name.startswith("on_") and kind.owner.other_method:
            entry = rewrite(kind.owner.other_method)
        if entry is not None:
            automatic = bool(entry.new) and is_lightning
            if automatic:
                new = cst.Name(str(entry.new))
                self.found.edit(node, lambda method: method.with_changes(name=new))
            self.report(node.name, kind.library, entry, name, automatic)

    def visit_Assign(self, node: cst.Assign) -> None:
        kind = self.kind_of(node.value) if isinstance(node.value, cst.Call) else None
        for target in node.targets:
            if kind is not None and dotted(target.target):
                self._remember(dotted(target.target), kind)
        if isinstance(node.value, cst.Call) and isinstance(node.targets[0].target, cst.Tuple):
            returned = self._returned.get(dotted(node.value.func), ())
            for element, kind in zip(node.targets[0].target.elements, returned, strict=False):
                if kind is not None and dotted(element.value):
                    self._remember(dotted(element.value), kind)
        checkpoints.assigned(self, node)
        results.assigned(self, node)
        expressions.assignment(self, node)

    def _remember(self, name: str, kind: Kind) -> None:
        """A variable; an attribute of ``self`` is known in the whole class."""
        of_class = name.startswith("self.") and self.classes and self.functions
        self._variables[-2 if of_class and len(self._variables) > 1 else -1][name] = kind

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        kind = self.names.class_of(node.annotation.annotation)
        if kind is not None and dotted(node.target):
            self._remember(dotted(node.target), kind)

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Dict(self, node: cst.Dict) -> None:
        expressions.dictionary(self, node)

    def visit_Return(self, node: cst.Return) -> None:
        if len(self.functions) == 1 and not self.classes and node.value is not None:
            self._note_returned(self.functions[0].name.value, node.value)
        expressions.returned(self, node)

    def _note_returned(self, function: str, value: cst.BaseExpression) -> None:
        """What a function of the file returns, for those that call it below."""
        parts = [one.value for one in value.elements] if isinstance(value, cst.Tuple) else [value]
        kinds = [self.kind_of(part) for part in parts]
        before = self._returned.get(function, kinds)
        if len(before) == len(kinds):
            kinds = [one if one == other else None for one, other in zip(before, kinds, strict=True)]
        else:
            kinds = []
        self._returned[function] = kinds

    def visit_Subscript(self, node: cst.Subscript) -> None:
        if node not in self._handled:
            expressions.subscript(self, node)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        expressions.contains(self, node)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        files.text(self, node)

    def visit_FormattedStringText(self, node: cst.FormattedStringText) -> None:
        files.text(self, node)

    def visit_FormattedStringExpression(self, node: cst.FormattedStringExpression) -> None:
        self.path_like.add(node.expression)

    def visit_For(self, node: cst.For) -> None:
        results.counted(self, node.iter)

    def visit_Expr(self, node: cst.Expr) -> None:
        expressions.statement(self, node)

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in self.renamed:
            self.found.edit(node, edits.named(self.renamed[node.value]))
            return
        self.imports.use(node)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if node in self._handled:
            node.value.visit(self)
            return False
        files.attribute(self, node)
        if expressions.attribute(self, node):
            node.value.visit(self)
            return False
        kind = self.kind_of(node.value) or checkpoints.member(self, node)
        if kind is not None:
            self._member(node, kind)
        elif self.imports.use_attribute(node):
            return False
        node.value.visit(self)
        return False

    def _member(self, node: cst.Attribute, kind: Kind) -> None:
        name, owner = node.attr.value, kind.owner
        if self._is_own(node):
            return
        entry = owner.members.get(name)
        if entry is None and owner.other_member and not name.startswith("_"):
            entry = rewrite(owner.other_member)
        if entry is None:
            return
        if kind.key == ("lightning", "Trainer") and name == "log_dir":
            files.folder(self, node, kind, node.value)
            return
        automatic = bool(entry.new) and kind.library.name == "lightning"
        if automatic:
            self.found.edit(node, edits.attribute(str(entry.new)))
        self.report(node.attr, kind.library, entry, shown(node), automatic)

    def _is_own(self, node: cst.Attribute) -> bool:
        """Whether the class itself defines the member."""
        if dotted(node.value) != "self" or not self.classes:
            return False
        return node.attr.value in self.classes[-1][1].own

    def visit_Call(self, node: cst.Call) -> None:
        self.imports.mark_use(node.func)
        files.call(self, node)
        named = self.names.of_library(node.func)
        if named is not None and named[0].owner(named[1]) is not None:
            last = named[1].rpartition(".")[2]
            owner = named[0].owners[last]
            self._arguments(node, Kind(named[0], last), "", last, owner.arguments, owner)
            return
        if not isinstance(node.func, cst.Attribute):
            if dotted(node.func) in ("len", "enumerate", "zip"):
                for arg in node.args:
                    results.counted(self, arg.value)
            return
        kind, method = self.kind_of(node.func.value), node.func.attr.value
        if kind is not None and method in kind.owner.calls and not self._is_own(node.func):
            self._arguments(node, kind, method, shown(node.func), kind.owner.calls[method], None)
        if kind is not None:
            results.logged(self, node, kind)
        expressions.call(self, node, kind)

    def _arguments(
        self,
        node: cst.Call,
        kind: Kind,
        method: str,
        title: str,
        table: Mapping[str, Entry],
        owner: Owner | None,
    ) -> None:
        """Report the arguments of a call, and plan what takes their places."""
        is_lightning = kind.library.name == "lightning"
        kept, names = POSITIONS.get((kind.name, method), (99, "")) if is_lightning else (99, "")
        positional = names.split() if names else [*(owner.positional if owner else ())]
        if owner is not None and positional:
            kept = 1
        keywords = _keywords(node, positional)
        values = {name: arg.value for name, arg in zip(keywords, node.args, strict=True) if name}
        translate = CALLS.get((kind.name, method)) if is_lightning else None
        spread = any(arg.star == "**" for arg in node.args)
        sure = not spread or kind.name != "ModelCheckpoint" or "monitor" in values
        done = translate(values) if translate and sure else Translation()
        if spread:  # it may have what would be added
            done.extra, done.added = [], []
        if is_lightning and kind.name in ("ModelCheckpoint", "EarlyStopping"):
            results.monitored(self, values.get("monitor"))
        if is_lightning and node in self.checkpoints.names:
            done.extra.append(("name", self.checkpoints.names[node]))
        entries: list[Entry | None] = []
        plan: list[edits.Put | None] = []
        for index, (name, arg) in enumerate(zip(keywords, node.args, strict=True)):
            by_position = arg.keyword is None
            entry = done.entries.get(name) or table.get(name)
            if entry is None and owner is not None and owner.other_argument and name:
                entry = rewrite(owner.other_argument)
            put = put_of(name, entry, done, index < kept and by_position, not by_position) if name else None
            entries.append(entry)
            plan.append(put)
        _keep_in_order(node, plan)
        for name, arg, entry, put in zip(keywords, node.args, entries, plan, strict=True):
            if arg.star == "**" and owner is not None and owner.other_argument:
                known = is_known_spread(arg.value, self._spread, table)
                self.report(arg, kind.library, rewrite(_SPREAD), f"{title}(**)", marked=not known)
                self._spread.add(code_of(arg.value))
            if entry is not None and (arg.keyword is not None or put is not None or not is_lightning):
                self.report(arg, kind.library, entry, f"{title}({name}=)", is_lightning and put is not None)
        for entry in done.added:
            self.report(node, kind.library, entry, title, True)
        if is_lightning and (done.extra or any(put is not None for put in plan)):
            self.found.edit(node, edits.arguments(plan, done.extra))
            self.found.imports |= {(module, name, name) for module, name in done.imports}


def _keep_in_order(node: cst.Call, plan: list[edits.Put | None]) -> None:
    """Leave arguments by position where one after them stays by position: it would be another one."""
    last = max((n for n, arg in enumerate(node.args) if _stays(arg, plan[n])), default=0)
    for index, arg in enumerate(node.args[:last]):
        if arg.keyword is None:
            plan[index] = None


def _stays(arg: cst.Arg, put: edits.Put | None) -> bool:
    return arg.keyword is None and arg.star != "**" and put is None


def _keywords(node: cst.Call, positional: list[str]) -> list[str]:
    """What each argument is called; "" where that is unknown."""
    found = []
    for index, arg in enumerate(node.args):
        by_name = positional[index] if index < len(positional) and not arg.star else ""
        found.append(arg.keyword.value if arg.keyword else by_name)
    return found
