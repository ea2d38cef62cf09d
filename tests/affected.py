"""Which test files a change can affect, nearest first.

Nodes are files, by their paths from the root. Each names others, at a distance:

- 0: a test and the ``*_job.py`` that it runs. 0.5: the module that it mirrors.
- 1 at most, and first among equals: ``test_NAME*.py`` of the module ``NAME.py``, in any folder.
- 1: imports, inside functions too, but not for type checkers. What comes from a package is the module that
  defines it, also where the package loads it at first use; paths and module names in strings; ``*.md``.
- 2: the ``conftest.py`` of the tests' root; names that users write in strings, ``"ema"``.

Programs for Lightning name what takes its place: tests run them with their import lines replaced.

Left out: values that reach code without a name in the source (``getattr``), entry points of other packages,
and what the documentation's code names: a page affects tests, a module does not affect pages.
"""

from __future__ import annotations

import ast
import heapq
import itertools
import json
import math
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "paceline"
# By test file; the second file is of this machine.
SECONDS = ("tests/durations.json", "build/test-seconds.json")
_NOT_PRODUCT = ("tests/", "benchmarks/", "docs/", "build/", ".")
_BY_NAME = ("callbacks/", "strategies/", "recipes/", "optimizers/")  # users write their names in strings
_LIGHTNING = {
    "lightning": f"{PACKAGE}.compat.lightning",
    "pytorch_lightning": f"{PACKAGE}.compat.lightning.pytorch",
    "lightning_fabric": f"{PACKAGE}.compat.lightning.fabric",
}
_MIRRORED = {"tests/commands": "tests/test_command"}  # where no folder of tests has the name of the code's
OF_THE_WHOLE = (  # what reads the package as a whole, and takes seconds
    "tests/test_architecture.py",
    "tests/test_options.py",
    "tests/test_mutants.py::test_each_fault_can_be_made_in_one_place",
    "tests/test_docs.py::test_the_api_reference_and_the_trainer_s_docstring_are_up_to_date",
)


def listed(root: Path) -> list[str]:
    """The files of a checkout: what git tracks, and what it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return sorted({name for name in done.stdout.split("\0") if name and (root / name).is_file()})


def is_test(path: str) -> bool:
    """Whether pytest collects it."""
    return path.startswith("tests/") and PurePosixPath(path).match("test_*.py")


def is_product(path: str) -> bool:
    """Whether it is a module of the package."""
    return path.endswith(".py") and not path.startswith(_NOT_PRODUCT)


class _Named(ast.NodeVisitor):
    """What the code of a file names: imports and attributes as (module, name), strings without spaces."""

    def __init__(self, module: str, is_package: bool, *, for_types: bool = False) -> None:
        self.imports: dict[tuple[str, str], str] = {}  # and the name that it has here
        self.attributes: set[tuple[str, str]] = set()
        self.strings: set[str] = set()
        self.tables: dict[str, str] = {}
        self.classes: list[str] = []
        self._parents = module.split(".") if is_package else module.split(".")[:-1]
        self._for_types = for_types

    def absolute(self, module: str) -> str:
        """The full name of ``.module``."""
        name = module.lstrip(".")
        kept = self._parents[: len(self._parents) + 1 - (len(module) - len(name))] if name != module else []
        return ".".join([*kept, *filter(None, [name])])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(node.name)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        for child in node.orelse if self._skips(node.test) else [node.test, *node.body, *node.orelse]:
            self.visit(child)

    def _skips(self, test: ast.expr) -> bool:
        return not self._for_types and getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"

    def visit_Import(self, node: ast.Import) -> None:
        for one in node.names:
            self.imports[one.name, ""] = one.asname or ""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for one in node.names:
            module = self.absolute("." * node.level + (node.module or ""))
            self.imports[module, one.name] = one.asname or one.name

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            self.attributes.add((inner.id, ".".join(reversed(parts))))
        self.visit(inner)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and len(node.value) < 120 and " " not in node.value:
            self.strings.add(node.value)

    def visit_Dict(self, node: ast.Dict) -> None:
        self.generic_visit(node)
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                self.tables[str(key.value)] = str(value.value)


_NAMES_WITHOUT_USE = (
    "tests/test_affected.py",  # the files that it names are its cases
    "tests/helpers/rank_server.py",  # what it imports in advance, jobs name themselves
)


class Graph:
    """Which file names which, of a checkout."""

    def __init__(self, root: Path = ROOT, files: Iterable[str] | None = None) -> None:
        self.root, self.files = root, sorted(listed(root) if files is None else files)
        self._modules = {self._module(path): path for path in self.files if path.endswith(".py")}
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in self.files:
            self._by_name[PurePosixPath(path).name].append(path)
        self._exports: dict[str, dict[str, tuple[str, str]]] = {}
        self._keys = self._names_in_strings()
        self._data = self._data_folders()
        self._in_folders = {path for paths in self._data.values() for path in paths}
        self._users: dict[str, dict[str, float]] = defaultdict(dict)  # by file: who names it, how far
        for path in self._modules.values():
            for named, distance in self._edges(path):
                if named != path:
                    known = self._users[named].get(path, distance)
                    self._users[named][path] = min(distance, known)

    @property
    def tests(self) -> list[str]:
        """All test files."""
        return [path for path in self.files if is_test(path)]

    def distances(self, changed: Iterable[str]) -> dict[str, float]:
        """The distance of each test file that a change of these files can affect."""
        found: dict[str, float] = {}
        changed = list(changed)
        queue = [(0.0, path) for path in sorted(changed)]
        while queue:
            distance, path = heapq.heappop(queue)
            if path in found:
                continue
            found[path] = distance
            for user, further in self._users.get(path, {}).items():
                heapq.heappush(queue, (distance + further, user))
        near = beside(changed)
        tests = [path for path in found if is_test(path) and (self.root / path).exists()]

        def most(path: str) -> float:
            return 1 if is_named_after(path, changed) else 2 if path.startswith(near) else math.inf

        return {path: min(found[path], most(path)) for path in tests}

    def _module(self, path: str) -> str:
        parts = list(PurePosixPath(path).with_suffix("").parts)
        parts = parts[1:] if parts[0] == "tests" else parts
        return ".".join([PACKAGE] * is_product(path) + [p for p in parts if p != "__init__"])

    @cache  # noqa: B019
    def _named(self, path: str, *, for_types: bool = False) -> _Named:
        named = _Named(self._module(path), path.endswith("__init__.py"), for_types=for_types)
        with suppress(SyntaxError, FileNotFoundError):  # the tests will say it; a file that was deleted
            named.visit(ast.parse((self.root / path).read_text()))
        if path in _NAMES_WITHOUT_USE:
            named.strings.clear()
        return named

    def _edges(self, path: str) -> Iterator[tuple[str, float]]:
        named = self._named(path)
        own = named.strings if path.endswith("__init__.py") else set()
        exported = self._exported(path) if own else {}
        bound = {PACKAGE: PACKAGE}
        for (imported, name), alias in named.imports.items():
            first, dot, rest = imported.partition(".")
            module = imported if is_product(path) else f"{_LIGHTNING.get(first, first)}{dot}{rest}"
            if alias in own and alias in exported:
                continue  # who wants the name reads it from its module
            bound[alias] = f"{module}.{name}".rstrip(".")
            yield from ((found, 1) for found in self._resolved(module, name, path))
        for first, rest in named.attributes:
            if first in bound:
                yield from ((found, 1) for found in self._resolved(bound[first], rest, path))
        for text in named.strings - {*exported, *named.tables.values()} if own else named.strings:
            yield from self._from_string(text, named, path)
        yield from self._from_place(path)

    def _resolved(self, module: str, name: str, path: str) -> set[str]:
        """The files that ``from module import name`` means in a file; the name may have dots."""
        parts = [*module.split("."), *name.split(".")]
        beside = self._module(path).split(".")[:-1]
        for start, end in itertools.product(([], beside), range(len(parts), 0, -1)):
            found = self._modules.get(".".join([*start, *parts[:end]]).rstrip("."))
            if found is None or (start and is_product(found)):
                continue
            rest = parts[end] if end < len(parts) else ""
            home = self._exported(found).get(rest) if found.endswith("__init__.py") else None
            return {found, *(self._resolved(*home, found) if home else ())}
        return set()

    def _exported(self, init: str) -> dict[str, tuple[str, str]]:
        """Where a package's names are defined, by its imports and its tables of names and modules."""
        if init not in self._exports:
            named = self._named(init, for_types=True)
            found = {alias: key for key, alias in named.imports.items() if key[0].startswith(PACKAGE)}
            tables = {n: (named.absolute(m), n) for n, m in named.tables.items() if re.match(r"\.+\w", m)}
            self._exports[init] = found | tables
        return self._exports[init]

    def _from_string(self, text: str, named: _Named, path: str) -> Iterator[tuple[str, float]]:
        if re.fullmatch(rf"({PACKAGE}|helpers)(\.\w+)+(:\w+)?", text):
            yield from ((found, 1) for found in self._resolved(text.replace(":", "."), "", path))
        elif re.fullmatch(r"\.+\w+(\.\w+)*", text):  # in a test, of the package that its folder mirrors
            module = named.absolute(text) if is_product(path) else f"{PACKAGE}.{named.absolute(text)}"
            yield from ((found, 1) for found in self._resolved(module, "", path))
        if is_product(path):
            beside = self._by_name.get(text, ())
            yield from ((p, 1) for p in beside if not p.endswith(".py") and not p.startswith(_NOT_PRODUCT))
            return
        if text == PACKAGE:  # as a command
            yield "__main__.py", 1
        if text in ("*.md", ".md"):
            yield from ((page, 1) for page in self.files if re.match(r"(README|docs/.*)\.md", page))
        yield from ((found, 1) for found in self._files_of(text, path))
        yield from ((found, 1) for found in self._data.get(text, ()))
        key = text.split("_stage_")[0].lower().replace("-", "").replace("_", "")
        yield from ((found, 2) for found in self._keys.get(key, ()))

    def _files_of(self, text: str, path: str) -> list[str]:
        """The files that a string means: those beside the file that has it come first."""
        found = [p for p in self._by_name.get(text.rsplit("/", 1)[-1], ()) if f"/{p}".endswith(f"/{text}")]
        found = [p for p in found if "/" in text or not (is_product(p) or p in self._in_folders)]
        return [p for p in found if folder_of(p) == folder_of(path)] or found

    def _from_place(self, path: str) -> Iterator[tuple[str, float]]:
        if is_test(path):
            yield path.removeprefix("tests/").replace("test_", ""), 0.5
            strings = [text for text in self._named(path).strings if text.endswith("_job.py")]
            yield from ((job, 0) for text in strings for job in self._files_of(text, path))
            for folder in map(str, PurePosixPath(path).parents):
                yield f"{folder}/conftest.py", 2 if folder == "tests" else 1

    def _names_in_strings(self) -> dict[str, list[str]]:
        keys: dict[str, list[str]] = defaultdict(list)
        for path in self.files:
            if is_product(path) and path.startswith(_BY_NAME) and not path.endswith("__init__.py"):
                for name in {PurePosixPath(path).stem, *self._named(path).classes}:
                    keys[name.lower().replace("_", "")].append(path)
        return keys

    def _data_folders(self) -> dict[str, list[str]]:
        """The folders in those of tests that have none, and what lies in them, by their names."""
        tested = {str(parent) for path in self.tests for parent in PurePosixPath(path).parents}
        tested.add("tests/helpers")
        found: dict[str, list[str]] = defaultdict(list)
        for path in self.files:
            for folder in PurePosixPath(path).parents:
                if str(folder) not in tested and str(folder.parent) in tested - {"."}:
                    found[folder.name].append(path)
        return found


def folder_of(path: str) -> str:
    """The folder of a file, empty for the root."""
    return path.rpartition("/")[0]


def beside(changed: Iterable[str]) -> tuple[str, ...]:
    """What the paths of the tests begin with whose folders mirror those of these files."""
    folders = {folder_of(path if path.startswith("tests/") else f"tests/{path}") for path in changed}
    return tuple(_MIRRORED.get(folder, f"{folder}/") for folder in folders if folder != "tests")


def is_named_after(test: str, changed: Iterable[str]) -> bool:
    """Whether a test is called ``test_NAME.py`` or ``test_NAME_*.py`` after one of these modules."""
    names = tuple(f"test_{PurePosixPath(path).stem}_" for path in changed if is_product(path))
    return f"{PurePosixPath(test).stem}_".startswith(names)


@dataclass(frozen=True)
class Selection:
    """What is to run.

    Attributes:
        run: Test files and single tests, nearest first, with their distance.
        left_out: What a change can affect too.
        seconds: Of one process, as far as they are known.
    """

    run: dict[str, float]
    left_out: dict[str, float]
    seconds: float


def select(graph: Graph, changed: Iterable[str], budget: float) -> Selection:
    """The nearest tests that fit into a budget; those below a distance of 1 are always selected.

    Args:
        graph: Of the checkout.
        changed: Paths from its root.
        budget: Seconds of one process.
    """
    changed = [*changed]
    seconds = known_seconds(graph)
    distances = graph.distances(changed)
    for test in OF_THE_WHOLE if any(map(is_product, changed)) else ():
        if test.split("::")[0] in graph.files:
            distances[test] = 1
    near = beside(changed)
    run: dict[str, float] = {}
    left: dict[str, float] = {}
    spent = 0.0

    def order(test: str) -> tuple[float, bool, bool, bool, float, str]:
        named, in_folder = is_named_after(test, changed), f"{folder_of(test)}/" in near
        return distances[test], not named, not in_folder, not test.startswith(near), seconds(test), test

    for test in sorted(distances, key=order):
        if distances[test] >= 1 and spent + seconds(test) > budget:
            left[test] = distances[test]
            continue
        run[test] = distances[test]
        spent += seconds(test)
    for test in [one for one in run if "::" in one and one.split("::")[0] in run]:
        del run[test]  # its file runs as a whole
    return Selection(run, left, spent)


def known_seconds(graph: Graph) -> Callable[[str], float]:
    """How long a test file takes: as it was measured, else by what it starts."""
    measured: dict[str, float] = {}
    for name in SECONDS:
        if (graph.root / name).exists():
            measured |= json.loads((graph.root / name).read_text())

    @cache
    def of(test: str) -> float:
        if "::" in test or test in measured:
            return measured.get(test, 5.0)
        text = (graph.root / test).read_text()
        return 40.0 if re.search("subprocess|processes", text) else 25.0 if "helpers.ranks" in text else 6.0

    return of


def changed_files(root: Path, base: str = "HEAD") -> list[str]:
    """What differs from a revision, and files that git does not know yet."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return [name for name in done.stdout.split("\0") if name]

    new = git("ls-files", "-z", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", "--no-renames", "-z", base), *new})
