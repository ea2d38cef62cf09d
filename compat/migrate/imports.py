"""Imports of the libraries' names, and the names that take their place."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import metadata

from .context import Context
from .edits import named
from .found import Edit
from .resolve import Names, code_of, dotted, find_library
from .tables import Entry, Group, Library, rewrite


class Imports:
    """The import statements of a file.

    Args:
        wrapper: The parsed file.
        names: What its names refer to.
        scanner: Takes what is found.
    """

    def __init__(self, wrapper: metadata.MetadataWrapper, names: Names, scanner: Context) -> None:
        scopes = wrapper.resolve(metadata.ScopeProvider)
        self._global: Any = scopes[wrapper.module]
        self._names, self._scanner = names, scanner
        self._modules: list[tuple[cst.Import | cst.ImportFrom, cst.ImportAlias, Library, str]] = []
        self._used: set[str] = set()
        self._taken: set[str] = set()
        self._marked: dict[str, str] = {}
        self._kept: dict[cst.CSTNode, list[cst.ImportAlias]] = {}
        self.edited: list[cst.CSTNode] = []
        self.places: list[cst.CSTNode] = []

    def visit_import(self, node: cst.Import) -> None:
        """``import lightning as L``: left out when all that is used through it has another name here."""
        for alias in node.names:
            found = find_library(dotted(alias.name), self._names.libraries)
            if found is not None and not _is_ignored(*found):
                self._modules.append((node, alias, found[0], dotted(alias.name)))
                self.places.append(node)

    def visit_from(self, node: cst.ImportFrom) -> None:
        """``from lightning import Trainer``."""
        module = dotted(node.module) if node.module and not node.relative else ""
        found = find_library(module, self._names.libraries) if module else None
        if found is None or isinstance(node.names, cst.ImportStar):
            if found is not None:
                self._scanner.report(
                    node, found[0], rewrite("name what is imported"), f"from {module} import *"
                )
            return
        library, part = found
        self.places.append(node)
        for alias in node.names:
            self._from(node, alias, library, f"{part}.{dotted(alias.name)}".lstrip("."), module)

    def _from(
        self, node: cst.ImportFrom, alias: cst.ImportAlias, library: Library, name: str, module: str
    ) -> None:
        last = dotted(alias.name)
        if name in library.modules or (last in library.modules and last.islower()):
            self._modules.append((node, alias, library, f"{module}.{last}"))
            return
        entry = library.entry(name)
        if entry is None:
            return
        self._taken.add(f"{module}.{last}")
        automatic = library.name == "lightning" and bool(entry.new)
        if automatic:
            self._drop(node, alias)
        self._scanner.report(alias, library, entry, last, automatic)
        if not automatic and library.name == "lightning" and last[:1].isupper():
            self._marked[f"{module}.{last}"] = f"{last}: {entry.text}"

    def mark_use(self, node: cst.CSTNode) -> None:
        """A class without a counterpart is called, or derived from: that is marked, and not its import."""
        for name in self._names.qualified(node):
            if name in self._marked:
                self._scanner.move_mark(self._marked[name])

    def _drop(self, node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> None:
        assert not isinstance(node.names, cst.ImportStar)
        if node not in self._kept:
            self._kept[node] = list(node.names)
            self.edited.append(node)
            self._scanner.found.edit(node, self._without(node))
        self._kept[node].remove(alias)

    def _without(self, node: cst.CSTNode) -> Edit:
        def edit(updated: Any) -> Any:
            kept = self._kept[node]
            if not kept:
                return cst.RemoveFromParent()
            names = [*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
            if getattr(updated, "lpar", None) and isinstance(updated.names[-1].comma, cst.Comma):
                names[-1] = kept[-1].with_changes(comma=updated.names[-1].comma)
            return updated.with_changes(names=names)

        return edit

    # -- where the names are used --------------------------------------------------------------

    def use(self, node: cst.Name) -> None:
        """A name by itself: one that was imported, or a module of which more is used than is known here."""
        found = self._names.of_library(node)
        if found is None:
            return
        library, name = found
        entry = library.entry(name) if name else None
        if entry is None or name.rpartition(".")[2] in library.modules:
            self._used |= set(self._names.qualified(node))
        elif entry.new and library.name == "lightning":
            self._scanner.found.edit(node, named(self.local(entry.new)))

    def use_attribute(self, node: cst.Attribute) -> bool:
        """``L.Trainer``: True where it is a name of a library and no more is to be said about it."""
        found = self._names.of_library(node)
        inner = self._names.of_library(node.value)
        if found is None or inner is None:
            return False
        library, name = found
        if inner[1].rpartition(".")[2][:1].isupper() or self._taken & {*self._names.qualified(node.value)}:
            return False
        entry = library.entry(name)
        if entry is None:
            return False
        automatic = bool(entry.new) and library.name == "lightning"
        if automatic:
            self._scanner.found.edit(node, named(self.local(str(entry.new))))
        self._scanner.report(node, library, entry, code_of(node), automatic)
        return automatic

    def local(self, new: str) -> str:
        """The name under which new code has what it imports: another one where the file has that name."""
        module, _, name = new.rpartition(".")
        if any(not self._is_ours(assignment, new) for assignment in self._global[name]):
            bound = f"Paceline{name[0].upper()}{name[1:]}"
        else:
            bound = name
        if not any(q == new for a in self._global[name] for q in _sources(a)):
            self._scanner.found.imports.add((module, name, bound))
        return bound

    def _is_ours(self, assignment: Any, new: str) -> bool:
        """Whether a name of the file is the library's and goes, or already the one that takes its place."""
        return any(source == new or self._goes(source) for source in _sources(assignment))

    def _goes(self, source: str) -> bool:
        found = find_library(source, self._names.libraries)
        entry = found[0].entry(found[1]) if found and found[1] else None
        return found is not None and (entry is None or entry.new is not None)

    def finish(self) -> None:
        """Say what becomes of modules that were imported, when all their uses are known."""
        for node, alias, library, module in self._modules:
            bound = dotted(alias.asname.name) if alias.asname else module
            used = module in self._used or module.partition(".")[0] in self._used
            automatic = library.name == "lightning" and not used
            if automatic:
                self._drop(node, alias)
            shown = f"import {module}" + (f" as {bound}" if alias.asname else "")
            if library.other is not None:
                entry = Entry(Group.REWRITE, "import from paceline what is used of it", "")
                self._scanner.report(node, library, entry, shown, automatic, marked=False)


def _sources(assignment: Any) -> list[str]:
    if not isinstance(assignment, metadata.ImportAssignment):
        return []
    name = assignment.name
    return [q.name for q in assignment.get_qualified_names_for(name)]


def _is_ignored(library: Library, name: str) -> bool:
    return bool(name) and name.partition(".")[0] in library.ignored
