"""What is found in a file: for the report, and for ``--write``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from .tables import Group, Library

Edit = Callable[[Any], Any]
"""Takes a node whose children are edited already; returns what takes its place."""


@dataclass(frozen=True)
class Finding:
    """One place of a file.

    Args:
        line: From 1.
        group: What becomes of it.
        library: Whose name it is.
        name: As the file has it, or what it is an argument of: ``Trainer(logger=)``.
        text: How its meaning changes, or what to write.
        automatic: Whether ``--write`` does it.
    """

    line: int
    group: Group
    library: str
    name: str
    text: str
    automatic: bool = False


@dataclass
class Found:
    """All that is found in a file.

    Args:
        findings: For the report, in the order of the file.
        edits: What ``--write`` does at each node, from first to last.
        marks: Sentences for a comment above a statement.
        imports: Names that the new code imports: module, name and the name it is bound to.
        libraries: Those whose names are used.
    """

    findings: list[Finding] = field(default_factory=list)
    edits: dict[cst.CSTNode, list[Edit]] = field(default_factory=dict)
    marks: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    imports: set[tuple[str, str, str]] = field(default_factory=set)
    libraries: list[Library] = field(default_factory=list)

    def edit(self, node: cst.CSTNode, edit: Edit) -> None:
        """Let ``--write`` apply this to the node."""
        self.edits.setdefault(node, []).append(edit)
