"""What a class of the file has: read before its methods are."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from .resolve import dotted, text_of

SETTABLE = ("automatic_optimization", "example_input_array", "strict_loading", "hparams")


@dataclass
class ClassFacts:
    """Facts about a class.

    Args:
        methods: Names of its methods.
        own: Members that it defines itself: they are not the library's.
        inherited: Methods of its base classes in the file.
        logged: Attributes whose objects are logged: ``acc`` for ``self.log("acc", self.acc)``.
        hparams_object: Whether ``save_hyperparameters`` takes an object and more, such as names to ignore.
        shared_names: Those that it logs with ``add_dataloader_idx=False``, where they are literals.
        shared_mark: What a comment says of these, once a class; "" without them.
        depth: How many functions are around it.
        statements: How many its body has, without those that ``--write`` removes.
    """

    methods: dict[str, cst.FunctionDef] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    inherited: set[str] = field(default_factory=set)
    logged: set[str] = field(default_factory=set)
    hparams_object: bool = False
    shared_names: set[str] = field(default_factory=set)
    shared_mark: str = ""
    depth: int = 0
    statements: int = 0


def facts_of(node: cst.ClassDef, depth: int = 0) -> ClassFacts:
    """Read a class."""
    reader = _Reader()
    for statement in node.body.body:
        if isinstance(statement, cst.FunctionDef):
            reader.facts.methods[statement.name.value] = statement
        statement.visit(reader)
    reader.facts.own |= set(reader.facts.methods)
    reader.facts.own -= set(SETTABLE)
    reader.facts.depth, reader.facts.statements = depth, len(node.body.body)
    return reader.facts


class _Reader(cst.CSTVisitor):
    def __init__(self) -> None:
        self.facts = ClassFacts()

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._set(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._set(node.target)

    def _set(self, target: cst.BaseExpression) -> None:
        name = dotted(target)
        if name.startswith("self.") and name.count(".") == 1:
            self.facts.own.add(name.removeprefix("self."))

    def visit_Call(self, node: cst.Call) -> None:
        name = dotted(node.func)
        if name == "self.save_hyperparameters":
            objects = [arg for arg in node.args if arg.keyword is None and text_of(arg.value) is None]
            self.facts.hparams_object = bool(objects) and len(node.args) > 1
        elif name in ("self.log", "self.log_dict"):
            for arg in node.args[:2]:
                value = dotted(arg.value)
                if value.startswith("self."):
                    self.facts.logged.add(value.removeprefix("self."))
