"""Count the names of Lightning that public programs use: ``python count_names.py FOLDER > counted.csv``.

FOLDER has a folder of each repository. Files that import ``lightning``, ``pytorch_lightning`` or Fabric are
read as syntax trees, notebooks cell by cell; nothing is run. What Lightning defines is asked of the
installed Lightning.

Kinds, with a repository counted once for a name however often it uses it:
    import      dotted names, as ``lightning.pytorch...``, and attributes of an alias (``pl.Trainer``)
    trainer     attributes of a trainer, chains of its sub-objects to a depth of 3
    argument    keywords given to Lightning's classes and functions, and to ``self.log``, with the three
                literals that are given most
    module      attributes of self in LightningModules, and ``def X`` for what such a class overrides;
                so ``datamodule`` and ``callback``
    logger      attributes of a logger
    cli         attributes of a LightningCLI
"""

from __future__ import annotations

import ast
import csv
import inspect
import json
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOTS = {
    "pytorch_lightning": "lightning.pytorch",
    "lightning": "lightning",
    "lightning_fabric": "lightning.fabric",
    "lightning_lite": "lightning.fabric",
}
OF_LIGHTNING = re.compile(
    r"^\s*(?:import|from)\s+(?:pytorch_lightning|lightning|lightning_fabric|lightning_lite)\b", re.M
)
SUBPACKAGES = {"pytorch", "fabric", "app", "data", "store"}
FABRIC_AT_TOP = {"Fabric"}
SUB_OBJECTS = re.compile(
    r"^_?(?:\w*_?(?:loop|connector|plugin|callback|tracker)|strategy|accelerator|accelerator_backend|profiler|state"
    r"|logger|loggers|callback_metrics|logged_metrics|progress_bar_metrics|datamodule|lightning_module|precision"
    r"|signal_connector|tuner|batch_progress|epoch_progress|optimizer_progress|model)$"
)
SET = re.compile(r"self\.(\w+)(?:: [^=\n]+)? = ")
NO_TRAINER = re.compile(r"cfg|conf|args|hparams|opts?$|params|settings|namespace", re.I)
BASES = {
    "LightningModule": "module",
    "LightningDataModule": "datamodule",
    "Callback": "callback",
    "LightningCLI": "cli",
    "Trainer": "trainer",
}
TRAINER_METHODS = {"fit", "validate", "test", "predict", "save_checkpoint", "tune", "print"}
MODULE_METHODS = {
    "log",
    "log_dict",
    "save_hyperparameters",
    "load_from_checkpoint",
    "optimizers",
    "manual_backward",
}

Name = tuple[str, str]


def is_of_lightning(dotted: str) -> bool:
    """Whether a dotted name lies in Lightning."""
    return dotted == "lightning" or dotted.startswith("lightning.")


def normal(dotted: str) -> str:
    """A name of any of the packages as a name of ``lightning.pytorch`` or ``lightning.fabric``."""
    head, _, rest = dotted.partition(".")
    full = ROOTS.get(head, head) + ("." + rest if rest else "")
    parts = full.split(".")
    if parts[0] == "lightning" and len(parts) > 1 and parts[1] not in SUBPACKAGES:
        parts.insert(1, "fabric" if parts[1] in FABRIC_AT_TOP else "pytorch")
    return ".".join(parts)


def chain(node: ast.expr) -> list[str] | None:
    """``a.b.c`` as its names; None for anything but names and attributes."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return [node.id, *reversed(names)]


def source(file: Path) -> str | None:
    """The Python code of a file; of a notebook its cells without magics."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if file.suffix != ".ipynb":
        return text
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError):
        return None
    parts = []
    for cell in cells:
        if cell.get("cell_type") == "code":
            lines = "".join(cell.get("source", "")).splitlines()
            code = "\n".join("" if line.lstrip()[:1] in ("%", "!", "?") else line for line in lines)
            try:
                ast.parse(code)
            except (SyntaxError, ValueError):
                continue
            parts.append(code)
    return "\n".join(parts)


@dataclass
class File:
    """One file's tree with what its names stand for."""

    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)  # local name -> dotted name of Lightning
    others: set[str] = field(default_factory=set)  # local names of other imports

    def resolve(self, node: ast.expr) -> str | None:
        """The dotted name of Lightning that an expression is."""
        names = chain(node)
        if names is None or names[0] not in self.aliases:
            return None
        return normal(".".join([self.aliases[names[0]], *names[1:]]))


def read(text: str) -> File | None:
    """A file, or None where it is no Python 3."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file = File(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                root = one.name.split(".")[0]
                if root in ROOTS:
                    file.aliases[one.asname or root] = one.name if one.asname else root
                else:
                    file.others.add(one.asname or root)
        elif isinstance(node, ast.ImportFrom):
            ours = node.level == 0 and (node.module or "").split(".")[0] in ROOTS
            for one in node.names:
                if ours:
                    file.aliases[one.asname or one.name] = f"{node.module}.{one.name}"
                else:
                    file.others.add(one.asname or one.name)
    return file


def kind_of_base(dotted: str) -> str | None:
    """The kind of a Lightning class, by its own name."""
    name = dotted.rsplit(".", 1)[-1]
    if name in BASES:
        return BASES[name]
    if ".callbacks" in dotted and name[:1].isupper():
        return "callback"
    return "logger" if ".loggers" in dotted and name[:1].isupper() else None


class Repository:
    """The files of one repository, and which of its classes derive from Lightning's."""

    def __init__(self, folder: Path) -> None:
        self.files: list[File] = []
        self.lines = self.lines_of_lightning = 0
        bases: dict[str, list[str]] = defaultdict(list)
        self.kinds: dict[str, str] = {}
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.ipynb")]):
            text = source(path) if path.is_file() else None
            if text is None:
                continue
            count = text.count("\n")
            self.lines += count
            if OF_LIGHTNING.search(text) is None and "class " not in text:
                continue
            file = read(text)
            if file is None:
                continue
            for node in ast.walk(file.tree):
                if isinstance(node, ast.ClassDef):
                    for base in node.bases:
                        dotted = file.resolve(base)
                        if dotted is None:
                            bases[node.name].append(ast.unparse(base).split("[")[0].split(".")[-1])
                        elif (kind := kind_of_base(dotted)) is not None:
                            self.kinds.setdefault(node.name, kind)
            if file.aliases:
                self.files.append(file)
                self.lines_of_lightning += count
        for _ in range(8):  # bases of bases, by their simple names
            for name, names in bases.items():
                found = next((self.kinds[one] for one in names if one in self.kinds and one != name), None)
                if found is not None:
                    self.kinds.setdefault(name, found)

    def names(self, known: dict[str, set[str]]) -> Counter[Name]:
        """Every name with how often it is used."""
        found: Counter[Name] = Counter()
        for file in self.files:
            found.update(Reader(file, self.kinds, known).names())
        return found


class Reader:
    """Finds the names that one file uses.

    Args:
        file: The file.
        kinds: The repository's classes that derive from Lightning's.
        known: For each kind, the names that Lightning defines.
    """

    def __init__(self, file: File, kinds: dict[str, str], known: dict[str, set[str]]) -> None:
        self.file, self.kinds, self.known = file, kinds, known
        self.assigned: dict[
            str, str
        ] = {}  # name, or attribute of self -> "trainer", "logger", "cli", "other"
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                kind = self.made_by(node.value)
                for target in targets:
                    names = chain(target)
                    if names is not None and kind is not None and len(names) <= 2:
                        self.assigned.setdefault(".".join(names), kind)

    def made_by(self, call: ast.Call) -> str | None:
        """What a call makes, by the class that it calls."""
        dotted = self.file.resolve(call.func)
        if dotted is not None:
            parts = [one for one in dotted.split(".") if one in BASES or ".loggers" in dotted]
            if dotted.endswith((".Trainer", ".Trainer.from_argparse_args")):
                return "trainer"
            return kind_of_base(dotted) if parts and ".Trainer." not in dotted else None
        name = ast.unparse(call.func).split(".")[-1]
        if name in self.kinds:
            return self.kinds[name]
        return "other" if name.endswith("Trainer") else None

    # -- which expressions are what ------------------------------------------------------------

    def kind(self, names: list[str]) -> str | None:
        """What the object is that a chain of names ends with."""
        last = names[-1]
        made = self.assigned.get(".".join(names)) if len(names) <= 2 else None
        if made in ("trainer", "logger", "cli"):
            return made
        if made == "other" or any(NO_TRAINER.search(one) for one in names[:-1]):
            return None
        if last in ("trainer", "_trainer", "pl_trainer", "lightning_trainer"):
            if len(names) > 1 and (names[0] in self.file.aliases or names[0] in self.file.others):
                return None
            return None if len(names) == 1 and last in self.file.others else "trainer"
        if (
            last == "logger"
            and len(names) > 1
            and names[0] not in self.file.others | set(self.file.aliases)
        ):
            return "logger"
        return None

    # -- names ---------------------------------------------------------------------------------

    def names(self) -> Iterator[Name]:
        """Every use of a name."""
        yield from self.imports()
        inner = {id(node.value) for node in ast.walk(self.file.tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(self.file.tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                yield from self.of_chain(node)
            elif isinstance(node, ast.Call):
                yield from self.of_call(node)
            elif isinstance(node, ast.ClassDef):
                yield from self.of_class(node)

    def imports(self) -> Iterator[Name]:
        for node in ast.walk(self.file.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    if one.name.split(".")[0] in ROOTS:
                        yield "import", normal(one.name)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOTS:
                for one in node.names if node.level == 0 else ():
                    yield "import", normal(f"{node.module}.{one.name}")

    def of_chain(self, node: ast.Attribute) -> Iterator[Name]:
        names = chain(node)
        if names is None:
            # something()...trainer.x: only what follows a trainer is known
            tail: list[str] = []
            part: ast.expr = node
            while isinstance(part, ast.Attribute):
                tail.insert(0, part.attr)
                part = part.value
            names = ["()", *tail]
        dotted = self.file.aliases.get(names[0])
        if dotted is not None:
            yield from self.of_alias(dotted, names)
            return
        for at in range(len(names) - 1):
            kind = self.kind(names[: at + 1])
            if kind == "trainer":
                yield from self.of_trainer(names[at + 1 :])
                return
            if kind in ("logger", "cli"):
                if kind == "cli" and names[at + 1] == "trainer" and len(names) > at + 2:
                    yield from self.of_trainer(names[at + 2 :])
                if not (kind == "cli" and names[at + 1].startswith("__")):
                    yield kind, names[at + 1]
                return

    def of_alias(self, dotted: str, names: list[str]) -> Iterator[Name]:
        parts: list[str] = []
        for name in names[1:]:
            parts.append(name)
            if name[:1].isupper():
                break
        imported = dotted.rsplit(".", 1)[-1]
        if imported[:1].isupper():  # an attribute of an imported class
            if imported == "Trainer":
                yield "trainer", names[1]
            elif imported == "LightningModule" and names[1] in self.known["module"]:
                yield "module", names[1]
            return
        yield "import", normal(".".join([dotted, *parts]))
        rest = names[1 + len(parts) :]
        if rest and parts[-1] == "Trainer":
            yield "trainer", rest[0]
        elif rest and parts[-1] == "LightningModule" and rest[0] in self.known["module"]:
            yield "module", rest[0]

    def of_trainer(self, rest: list[str]) -> Iterator[Name]:
        if rest[0].startswith("__"):
            return
        yield "trainer", rest[0]
        if rest[0] == "logger" and len(rest) > 1:
            yield "logger", rest[1]
        for depth in range(1, min(len(rest), 3)):
            if not SUB_OBJECTS.match(rest[depth - 1]):
                return
            yield "trainer", ".".join(rest[: depth + 1])

    def of_call(self, node: ast.Call) -> Iterator[Name]:
        keywords = [one for one in node.keywords if one.arg is not None]
        dotted = self.file.resolve(node.func)
        names = chain(node.func)
        if dotted is not None:
            parts = dotted.split(".")
            capital = next((at for at, one in enumerate(parts) if one[:1].isupper()), None)
            called = ".".join(parts[capital:]) if capital is not None else parts[-1]
            called = "Trainer" if called == "Trainer.from_argparse_args" else called
            yield from of_arguments(called, keywords)
        elif isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr"):
            if len(node.args) >= 2 and isinstance(node.args[1], ast.Constant):
                owner, name = chain(node.args[0]), node.args[1].value
                if (
                    owner is not None
                    and isinstance(name, str)
                    and self.kind(owner) in ("trainer", "logger")
                ):
                    yield self.kind(owner) or "", name
        elif names is not None and len(names) > 1:
            if names[-1] in TRAINER_METHODS and self.kind(names[:-1]) == "trainer":
                yield from of_arguments(f"Trainer.{names[-1]}", keywords)
            elif names[-1] in MODULE_METHODS and names[-2] in ("self", "pl_module") and len(names) == 2:
                if names[-1] != "log" or keywords or len(node.args) > 1:
                    yield from of_arguments(f"LightningModule.{names[-1]}", keywords)
            elif names[-1] == "load_from_checkpoint":
                for keyword in {one.arg for one in keywords} & {
                    "map_location",
                    "strict",
                    "hparams_file",
                    "checkpoint_path",
                }:
                    yield "argument", f"LightningModule.load_from_checkpoint({keyword})"

    def of_class(self, node: ast.ClassDef) -> Iterator[Name]:
        kind = self.kinds.get(node.name)
        if kind not in ("module", "datamodule", "callback", "cli"):
            return
        known = self.known[kind]

        def in_module(one: ast.Attribute) -> bool:
            return one.attr in self.known["module"]

        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name in known:
                yield kind, f"def {part.name}"
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
                if inner.value.id == "self" and inner.attr in known:
                    yield kind, inner.attr
                elif kind == "callback" and inner.value.id in ("pl_module", "module") and in_module(inner):
                    yield "module", inner.attr


def of_arguments(called: str, keywords: list[ast.keyword]) -> Iterator[Name]:
    """The keywords of a call, and each literal that one is given."""
    for one in keywords:
        name = f"{called}({one.arg})"
        yield "argument", name
        try:
            ast.literal_eval(one.value)
        except (ValueError, SyntaxError, TypeError):
            continue
        yield "given", f"{name}={ast.unparse(one.value)}"


def known_names() -> dict[str, set[str]]:
    """What Lightning's classes define, by kind; methods of torch's modules are no names of Lightning's."""
    import torch
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.cli import LightningCLI

    kinds = {
        "module": LightningModule,
        "datamodule": LightningDataModule,
        "callback": Callback,
        "trainer": Trainer,
        "cli": LightningCLI,
    }
    known = {kind: set(dir(one)) - set(dir(object)) for kind, one in kinds.items()}
    for kind, one in kinds.items():
        for base in one.__mro__[:-1]:
            if base.__module__.startswith("lightning."):
                known[kind] |= set(SET.findall(inspect.getsource(base)))
    known["module"] -= set(dir(torch.nn.Module))
    return known


def main() -> None:
    """Write the table to standard output, and each repository's lines of Python to standard error."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    known = known_names()
    repositories: Counter[Name] = Counter()
    uses: Counter[Name] = Counter()
    for folder in sorted(one for one in Path(sys.argv[1]).iterdir() if one.is_dir()):
        repository = Repository(folder)
        print(folder.name, repository.lines, repository.lines_of_lightning, sep=",", file=sys.stderr)
        found = repository.names(known)
        repositories.update(found.keys())
        uses.update(found)
    given: dict[str, list[str]] = defaultdict(list)  # the commonest first
    for (kind, name), _ in uses.most_common():
        if kind == "given":
            called, _, text = name.partition(")=")
            given[f"{called})"] += [text] if len(text) <= 40 else []
    table = csv.writer(sys.stdout)
    table.writerow(["kind", "name", "repositories", "uses", "given"])
    for kind, name in sorted(uses, key=lambda one: (one[0], -repositories[one], -uses[one], one[1])):
        if kind != "given":
            few = ", ".join(given.get(name, ())[:3])
            table.writerow([kind, name, repositories[kind, name], uses[kind, name], few])


if __name__ == "__main__":
    main()
