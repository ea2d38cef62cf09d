"""One file: what is found in it, and its native form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst
from libcst import metadata

from .edits import Rewriter, is_import
from .found import Finding, Found
from .libraries import LIBRARIES
from .resolve import Names
from .scan import Scanner
from .sources import Unreadable, marks, packages, parse, read
from .tables import Group


@dataclass
class FileReport:
    """What is known of a file.

    Args:
        path: As it was given.
        libraries: Those whose code it is; none for most files of a folder.
        findings: In the order of its lines.
        source: Its bytes.
        rewritten: Its native form; the same bytes where nothing is translated.
        error: Line and sentence, for a file that cannot be read.
    """

    path: Path
    libraries: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    source: bytes = b""
    rewritten: bytes = b""
    error: tuple[int | None, str] | None = None

    def count(self, group: Group, automatic: bool | None = None) -> int:
        """How many findings a group has; with ``automatic`` those that --write does, or does not."""
        return sum(f.group is group and automatic in (None, f.automatic) for f in self.findings)


def analyse(path: Path) -> FileReport:
    """Read a file. Nothing of it is imported or run."""
    try:
        source, tree = read(path)
        report = FileReport(path, source=source, rewritten=source)
        left = marks(source)
        known = {package.partition(".")[0] for library in LIBRARIES for package in library.packages}
        if packages(tree) & known:
            _scan(report)
    except Unreadable as error:
        return FileReport(path, error=(error.line, error.message))
    said = {f"{finding.name}: {finding.text}" for finding in report.findings}
    open_marks = [(line, text) for line, text in left if text not in said]
    if open_marks:
        report.libraries = report.libraries or ["lightning"]
        report.findings += [_of_mark(line, text) for line, text in open_marks]
        report.findings.sort(key=lambda finding: finding.line)
    return report


def _of_mark(line: int, text: str) -> Finding:
    name, _, rest = text.partition(": ")
    return Finding(line, Group.REWRITE, "lightning", name, rest or "a comment of --write is left here")


def _scan(report: FileReport) -> None:
    try:
        module = cst.parse_module(report.source)
        wrapper = metadata.MetadataWrapper(module)
        names = Names(wrapper, LIBRARIES)
        names.read_classes(wrapper.module)
        scanner = Scanner(wrapper, names)
        wrapper.module.visit(scanner)
        scanner.imports.finish()
        found = scanner.found
        if not found.libraries:
            return
        report.libraries = [library.name for library in found.libraries]
        report.findings = sorted(found.findings, key=lambda finding: finding.line)
        if found.edits or found.marks:
            report.rewritten = _rewritten(wrapper, scanner)
            parse(report.rewritten)
    except cst.ParserSyntaxError as error:
        raise Unreadable(error.raw_line, f"not Python: {error.message}") from None
    except RecursionError:
        raise Unreadable(None, "its expressions are nested too deeply") from None


def _rewritten(wrapper: metadata.MetadataWrapper, scanner: Scanner) -> bytes:
    new = _import_lines(scanner.found)
    before: dict[cst.CSTNode, list[cst.BaseStatement]] = {}
    if new:
        before[_anchor(wrapper, scanner)] = new
    written: Any = wrapper.module.visit(Rewriter(scanner.found, before))
    return bytes(written.bytes)


def _import_lines(found: Found) -> list[cst.BaseStatement]:
    """The statements for what the new code imports, others' packages first."""
    by_module: dict[str, list[str]] = {}
    for module, name, bound in sorted(found.imports):
        by_module.setdefault(module, []).append(name if name == bound else f"{name} as {bound}")
    modules = sorted(by_module, key=lambda module: (module.startswith("paceline"), module))
    return [cst.parse_statement(f"from {m} import {', '.join(by_module[m])}") for m in modules]


def _anchor(wrapper: metadata.MetadataWrapper, scanner: Scanner) -> cst.CSTNode:
    """The statement of the module before which new imports go."""
    parents: Mapping[Any, Any] = wrapper.resolve(metadata.ParentNodeProvider)
    module = wrapper.module
    for node in [*scanner.imports.edited, *scanner.imports.places]:
        statement: cst.CSTNode = node
        while parents[statement] is not module:
            statement = parents[statement]
        if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            return statement
    imports = [i for i, one in enumerate(module.body) if is_import(one)]
    after = imports[-1] + 1 if imports else int(module.get_docstring() is not None)
    return module.body[after]
