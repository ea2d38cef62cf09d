"""What the source of a test says of it: its tier, the marks and the packages for which it may be skipped.

Nothing is imported: the answer does not depend on the packages that are installed, and takes milliseconds.
Conditions of ``skipif`` are not looked at. The tier follows from the rules of ``tiers.py``;
``tests/test_promises.py`` compares it with pytest's.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from .tiers import TIERS, TRAINING, highest, names_of

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
NOT_RUN = ("soak", "gpu", "browser")
"""What is marked so is skipped: without ``--soak``, an accelerator, Chromium."""
_MARK = re.compile(r"\bpytest\.mark\.(?!soak\(ci=)(\w+)")  # `soak(ci=True)` runs in CI


class Facts(NamedTuple):
    """Of one test, all of its parameters together.

    Attributes:
        tier: Its tier.
        not_run: Those of ``NOT_RUN`` that it is.
        packages: The packages that it, or its file, takes by ``pytest.importorskip``.
    """

    tier: str
    not_run: frozenset[str]
    packages: frozenset[str]


@dataclass
class Source:
    """The top level of a file below tests/.

    Attributes:
        defined: Functions and classes by name, as they are written.
        compiled: The same, compiled: their names are those that ``tiers.py`` follows.
        values: What else is assigned.
        imported: By the name here: the module, and the name in it, empty for the module.
        fixtures: The decorators of those functions that are fixtures.
        needed: What they take by ``pytest.importorskip``; under the empty name what the file itself does.
    """

    path: Path
    defined: dict[str, ast.FunctionDef | ast.ClassDef] = field(default_factory=dict)
    compiled: dict[str, CodeType] = field(default_factory=dict)
    values: dict[str, ast.expr] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    fixtures: dict[str, str] = field(default_factory=dict)
    needed: dict[str, set[str]] = field(default_factory=dict)

    @property
    def tests(self) -> list[str]:
        """The names of its tests."""
        functions = [n for n, one in self.defined.items() if isinstance(one, ast.FunctionDef)]
        return [name for name in functions if name.startswith("test_")]


@functools.cache
def read(path: Path) -> Source:
    """A file; read once."""
    text = path.read_text()
    tree = ast.parse(text, str(path))
    found = Source(path)
    for node in tree.body:
        needed = found.needed.setdefault(getattr(node, "name", ""), set())
        if "importorskip" in text:  # to walk through few files
            needed.update(_skipped_without(node))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.defined[node.name] = node
            texts = [ast.unparse(one) for one in node.decorator_list]
            if fixture := next((text for text in texts if text.startswith("pytest.fixture")), ""):
                found.fixtures[node.name] = fixture
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                found.values |= {n.id: node.value for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.imported |= _imports(node, path)
    for code in compile(tree, str(path), "exec").co_consts:
        if isinstance(code, CodeType) and code.co_name in found.defined:
            found.compiled[code.co_name] = code
    return found


def _imports(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    if isinstance(node, ast.Import):
        for one in node.names:
            yield one.asname or one.name.partition(".")[0], (one.name, "")
        return
    module = node.module or ""
    if node.level:  # within the helpers
        module = f"{path.parent.name}.{module}".strip(".")
    for one in node.names:
        yield one.asname or one.name, (module, one.name)


def facts(path: Path, name: str) -> Facts:
    """Of this test of this file."""
    source = read(path)
    fixtures = _fixtures(source, name)
    marks = [*_marks(source, name), *_marks(source, "")]
    reached = [(place, _reached(place, one, set())) for place, one in [(source, name), *fixtures]]
    tiers = {tier for one in reached for tier in _tiers(*one)}
    tier = next((tier for tier in TIERS if tier in marks), "") or highest(tiers)
    not_run = {mark for mark in NOT_RUN if mark in marks}
    if any(fixture == "soak" for _, fixture in fixtures):
        not_run.add("soak")
    packages = {package for place, names in reached for n in names for package in place.needed[n]}
    return Facts(tier, frozenset(not_run), frozenset(packages | _needed(path)))


# -- fixtures ------------------------------------------------------------------------------------


def _fixtures(source: Source, name: str) -> list[tuple[Source, str]]:
    """Those that a test takes, from its own file and the files conftest.py."""
    places = [source, *(read(p) for p in _conftests(source.path))]
    wanted = [*_arguments(source.defined[name]), *_used(source, name), *_used(source, "")]
    for place in places:
        wanted += [n for n, decorator in place.fixtures.items() if "autouse=True" in decorator]
    found: dict[tuple[Path, str], tuple[Source, str]] = {}
    while wanted:
        one = wanted.pop()
        for place in places:
            if one in place.fixtures and (place.path, one) not in found:
                found[place.path, one] = place, one
                wanted += _arguments(place.defined[one])
    return list(found.values())


def _conftests(path: Path) -> list[Path]:
    folders = [folder for folder in path.parents if folder.is_relative_to(TESTS)]
    return [file for folder in folders if (file := folder / "conftest.py").exists()]


def _arguments(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    return [one.arg for one in node.args.args] if isinstance(node, ast.FunctionDef) else []


def _used(source: Source, name: str) -> list[str]:
    """The fixtures named by ``usefixtures``."""
    given = re.findall(r"usefixtures\((.*?)\)", " ".join(_mark_texts(source, name)))
    return re.findall(r"\w+", " ".join(given))


# -- marks ---------------------------------------------------------------------------------------


def _marks(source: Source, name: str) -> list[str]:
    return [mark for text in _mark_texts(source, name) for mark in _MARK.findall(text)]


def _mark_texts(source: Source, name: str) -> Iterator[str]:
    """The marks of a test, or of all tests of the file where the name is empty."""
    if not name:
        yield from [_written(source, source.values["pytestmark"])] if "pytestmark" in source.values else []
        return
    for decorator in source.defined[name].decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
            values = decorator.args[1] if len(decorator.args) > 1 else None
            if isinstance(values, ast.List | ast.Tuple) and values.elts:
                texts = [_written(source, one) for one in values.elts]
                shared = set.intersection(*(set(_MARK.findall(text)) for text in texts))
                yield from (f"pytest.mark.{mark}" for mark in shared)  # which each of its cases has
        else:
            yield _written(source, decorator)


def _written(source: Source, expression: ast.expr) -> str:
    """An expression as text, with what its names stand for."""
    texts = [ast.unparse(expression)]
    for node in ast.walk(expression):
        place, name = source, getattr(node, "id", "")
        module, inner = source.imported.get(name, ("", ""))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # of a module
            module, inner = ".".join(filter(None, source.imported.get(node.value.id, ()))), node.attr
        if file := _file(module):
            place, name = read(file), inner
        if name in place.values:
            texts.append(_written(place, place.values[name]))
    return " ".join(texts)


def _file(module: str) -> Path | None:
    """The file of a module of the helpers."""
    file = TESTS / f"{module.replace('.', '/')}.py"
    return file if module.startswith("helpers.") and file.exists() else None


# -- what it reaches -----------------------------------------------------------------------------


def _reached(source: Source, name: str, seen: set[str]) -> set[str]:
    """The functions and classes of its file that a test or a fixture uses, itself included."""
    if name in source.compiled and name not in seen:
        seen.add(name)
        for used in names_of(source.compiled[name]):
            _reached(source, used, seen)
    return seen


def _tiers(source: Source, names: set[str]) -> Iterator[str]:
    for used in {used for name in names for used in names_of(source.compiled[name])}:
        module, inner = source.imported.get(used, ("", ""))
        if used in TRAINING or _has_trainer(module, inner):
            yield "fit"
        if (module, inner) in {("subprocess", ""), ("helpers", "processes"), ("helpers.processes", "")}:
            yield "launch"
        elif module.startswith("helpers.") and _defined_in(module, inner) == "helpers.ranks":
            yield "ranks"


def _has_trainer(module: str, name: str) -> bool:
    """Whether this is of a helper that has a trainer."""
    file = _file(f"{module}.{name}") or _file(_defined_in(module, name))
    return file is not None and "Trainer" in read(file).imported


def _defined_in(module: str, name: str) -> str:
    """The module that defines what a helper imports or defines under this name."""
    file = _file(module)
    if file is None or name in read(file).defined:
        return module
    return _defined_in(*read(file).imported[name]) if name in read(file).imported else ""


@functools.cache
def _needed(path: Path) -> frozenset[str]:
    """What the file, or a helper that it imports, needs before any of its tests can run."""
    places = [
        place for module, name in read(path).imported.values() for place in (module, f"{module}.{name}")
    ]
    helpers = {file for place in places if (file := _file(place)) and file != path}
    return frozenset(read(path).needed.get("", ())).union(*(_needed(file) for file in helpers))


def _skipped_without(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
            given = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield from (str(one).partition(".")[0] for one in given)
