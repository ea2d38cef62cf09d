"""The budgets that docs/architecture.md promises; import-linter checks who imports whom."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import sizes
from helpers.public import PACKAGES

import paceline

ROOT = Path(paceline.__file__).parent
OF_OTHERS = re.compile(
    r"plugins.py|other_trainers/\w+.py|compat/configs/(finetuning/)?\w+.py|"
    r"compat/(migrate/(\w+_names|lightning/(names|trainer_names|arguments))|lightning/(.*strategies(/\w+)?|other_paths))\.py"
)
"""Tables of the names that others have, or may not take."""
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
FILES = sorted([*ROOT.glob("*.py"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.py"))])
BACKENDS = re.compile(r"\b(ddp|fsdp|hsdp|deepspeed|nccl|gloo)\b", re.IGNORECASE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def folder_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else "root"


@functools.cache
def trees():
    return [(path, ast.parse(path.read_text())) for path in FILES]


@functools.cache
def nodes(*kinds):
    """Of all files, with their paths; walked through once."""
    return [(path, n) for path, tree in trees() for n in ast.walk(tree) if isinstance(n, kinds)]


INTERFACES = {
    "arguments of Trainer": 45,
    "public names of Trainer": 45,
    "bases of Trainer": 1,
    "members of TrainerView": 30,
    "members of its parts": 33,
    "public names of Strategy": 40,
}
FLAT = {"root": 9}
"""Other limits than 20."""


def test_interfaces_do_not_grow():
    """What is new belongs to an object that exists, or to a part of the trainer."""
    found = sizes.interfaces()
    assert found.keys() == INTERFACES.keys()
    assert not {name: number for name, number in found.items() if number > INTERFACES[name]}


def test_folders_do_not_grow_flat():
    found = sizes.flat_files()
    assert not {name: number for name, number in found.items() if number > FLAT.get(name, 20)}


def test_no_file_over_400_lines():
    long = {name_of(p): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long


@pytest.mark.fit  # for its length
def test_no_function_over_60_lines():
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if code_lines(node) > 60
    ]
    assert not long


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body; a signature of many documented arguments is no long function."""
    body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1


def depth(node: ast.AST) -> int:
    blocks = (ast.If, ast.For, ast.While, ast.With, ast.Try)
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        elif_branch = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        deepest = max(deepest, depth(child) + (isinstance(child, blocks) and not elif_branch))
    return deepest


def test_nesting_at_most_4():
    deep = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if depth(node) > 4
    ]
    assert not deep


def test_imports_across_folders_are_relative():
    absolute = [
        f"{name_of(path)}: {line.strip()}"
        for path in FILES
        if folder_of(path) != "recipes" and name_of(path) not in ("__init__.py", "__main__.py")
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from|import) paceline\b", line)
    ]
    assert not absolute


def test_every_package_is_installed():
    """The packages are named one by one: setuptools would find tests and benchmarks too."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {p.parent.relative_to(ROOT) for f in FOLDERS for p in (ROOT / f).rglob("__init__.py")}
    assert sorted(named) == sorted({"paceline"} | {".".join(["paceline", *p.parts]) for p in found})


def test_backends_are_named_in_strategies_only():
    """And in the tables of names that others give them."""
    named = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in FILES
        if folder_of(path) != "strategies" and not OF_OTHERS.fullmatch(name_of(path))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BACKENDS.search(line) or "isinstance(strategy" in line
    ]
    assert not named


PRIVATE = {
    "strategies/torch_internals.py": "torch",
    "strategies/launch/elastic_agent.py": "torch's agent, overridden through self",
    "strategies/deepspeed/internals.py": "DeepSpeed",
    "strategies/deepspeed/zero_state.py": "DeepSpeed",
    "trainer/estimate/fake_tensors.py": "torch's fake tensors and memory tracker",
    "trainer/metrics/metric_objects.py": "torchmetrics",
    "compat/lightning/translation/namespace.py": "torch's modules",
}
"""The files that use private names of a library: each has its reasons there, and a test by name."""
PUBLIC = {"_exit", "_current_frames"}  # of os and sys, in their documentation


def private_names(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found.add(str(node.slice.value))
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - PUBLIC


def own_names(tree: ast.AST) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    every = list(ast.walk(tree))
    own = {n.name for n in every if isinstance(n, functions)}
    stored = [n for n in every if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    annotated = [n.target for n in every if isinstance(n, ast.AnnAssign)]
    own |= {target.id for target in annotated if isinstance(target, ast.Name)}
    return own | {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id in ("self", "cls")}


# Attributes that ours puts on objects of others: on an error (IPython documents one), and on a module.
MARKS = {"_crossed_fit", "_render_traceback_", "_configured", "_hparams"}


@pytest.mark.fit  # for its length
def test_private_names_of_libraries_are_in_one_file_each():
    own = set.union(MARKS, *(own_names(tree) for path, tree in trees() if name_of(path) not in PRIVATE))
    found = {name_of(path): private_names(tree) - own for path, tree in trees()}
    assert {name: names for name, names in found.items() if names and name not in PRIVATE} == {}
    assert found["strategies/torch_internals.py"] >= {"_worker_info", "_foreach_mul_"}


def test_the_map_names_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    files = [f"/{name_of(path)}" for path in (*FILES, *(ROOT / "tests").glob("*.py"))]
    named = set(re.findall(r"`([\w/]+\.py)`", page))
    assert len(named) > 100
    assert [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in files)] == []


def test_public_face_is_exactly_the_documented_names():
    page = (ROOT / "docs" / "architecture.md").read_text()
    documented = re.search(r"<!-- public face -->\n(.*?)\n<!-- end -->", page, re.DOTALL)[1]
    assert sorted(paceline.__all__) == sorted(re.findall(r"`(\w+)`", documented))
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None


@pytest.mark.parametrize("package", [p for p in PACKAGES if "__dir__" in vars(p)], ids=lambda p: p.__name__)
def test_a_name_that_is_loaded_at_first_use_is_listed_before(package, monkeypatch):
    for name in package.__all__:
        with monkeypatch.context() as unloaded:
            unloaded.delitem(vars(package), name, raising=False)
            is_listed = name in dir(package)
            assert is_listed or not hasattr(package, name), name


def public_things():
    for module in PACKAGES:
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


@pytest.mark.parametrize(
    ("name", "thing"), [(n, t) for n, t in public_things() if inspect.isclass(t) or inspect.isfunction(t)]
)
def test_public_things_are_documented_and_annotated(name, thing):
    assert inspect.getdoc(thing), name
    functions = [(name, thing)] if inspect.isfunction(thing) else list(vars(thing).items())
    if getattr(thing, "_is_protocol", False):  # whose constructor is typing's own
        functions = [(n, m) for n, m in functions if n != "__init__"]
    for method_name, method in functions:
        if not inspect.isfunction(method) or (method_name.startswith("_") and method_name != "__init__"):
            continue
        where = f"{name}.{method_name}"
        # A hook or verb that is overridden is documented where it is declared.
        inherited = inspect.isclass(thing) and any(hasattr(b, method_name) for b in thing.__mro__[1:])
        assert method.__doc__ or inherited, where
        signature = inspect.signature(method)
        assert signature.return_annotation is not inspect.Signature.empty, where
        for parameter in list(signature.parameters.values())[inspect.isclass(thing) :]:
            assert parameter.annotation is not inspect.Parameter.empty, f"{where}({parameter.name})"


def modules():
    for path in FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield importlib.import_module(".".join(["paceline", *(p for p in parts if p != "__init__")]))


def test_public_methods_are_documented_where_they_are_declared():
    """ruff's D102 would report each override too."""
    methods = (types.FunctionType, classmethod, staticmethod, property, functools.cached_property)
    undocumented = [
        f"{module.__name__}.{found.__qualname__}.{name}"
        for module in modules()
        for found in vars(module).values()
        if inspect.isclass(found) and found.__module__ == module.__name__
        for name, method in vars(found).items()
        if isinstance(method, methods) and not name.startswith("_") and not method.__doc__
        if name not in inspect.get_annotations(found)  # a field that holds a function
        if not any(hasattr(base, name) for base in found.__mro__[1:])
    ]
    assert not undocumented


def test_running_from_the_root_loads_one_copy():
    """The repository root is the package: a second copy of a class would break every isinstance."""
    script = """
import sys
from paceline import Trainer
from paceline.trainer.trainer import Trainer as Same
assert Trainer is Same
print([m for m in sys.modules if m.split(".")[0] in ("trainer", "callbacks", "strategies")])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
