"""What the parts of a scan know of the place they are at, and where they put what they find."""

from __future__ import annotations

from typing import Protocol

import libcst as cst

from .class_facts import ClassFacts
from .found import Found
from .remembered import Checkpoints, Result
from .resolve import Kind
from .tables import Entry, Library


class Context(Protocol):
    """The scan of a file, as its parts see it.

    Attributes:
        found: All that is found.
        code: The file's text.
        classes: The classes around this place, with what is known of them.
        functions: The functions around it.
        facts: What is known of each class so far, by its name.
        renamed: Names of the current hook that are written otherwise: ``pl_module``.
        fitted: The module that each trainer fits, by the trainer's name.
        started: The trainers of which a fit or an evaluation was called so far.
        path_like: Expressions in places that take a path as well as text.
        results: What evaluations returned, by the variable's name.
        checkpoints: The calls of ``ModelCheckpoint``, and the variables that hold one.
    """

    found: Found
    code: str
    classes: list[tuple[Kind | None, ClassFacts]]
    functions: list[cst.FunctionDef]
    facts: dict[str, ClassFacts]
    renamed: dict[str, str]
    fitted: dict[str, str]
    started: set[str]
    path_like: set[cst.CSTNode]
    results: dict[str, Result]
    checkpoints: Checkpoints

    def report(
        self,
        node: cst.CSTNode,
        library: Library,
        entry: Entry,
        name: str,
        automatic: bool = False,
        marked: bool = True,
    ) -> None:
        """Add a finding; one that ``--write`` does not do is marked above its statement.

        Args:
            node: Where it is.
            library: Whose name it is.
            entry: What becomes of it.
            name: As the report calls it.
            automatic: Whether an edit was added for it.
            marked: Whether a comment above the statement says what to write, where it is not.
        """

    def move_mark(self, text: str) -> None:
        """Mark the statement under way, and not what has this mark above."""

    def handled(self, node: cst.CSTNode) -> None:
        """Report nothing more about this node itself."""

    def kind_of(self, node: cst.CSTNode) -> Kind | None:
        """The library's class of an expression's value; of a class, itself."""

    def named(self, kind: str) -> list[str]:
        """The variables of the current function that hold an object of Lightning's class of this name."""

    def variable(self, name: str, kind: Kind) -> None:
        """A name of the current function holds an object of this class."""
