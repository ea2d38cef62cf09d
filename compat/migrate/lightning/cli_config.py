"""Configuration files of LightningCLI, as files that ``paceline fit`` reads."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst
import yaml

from ..resolve import find_library
from ..sources import Unreadable, python_files, read
from ..tables import Entry, Group, Owner, rewrite
from ..translation import Translation, put_of
from .arguments import CALLS
from .names import LIGHTNING

_NO_KEY = "LightningCLI got it from add_arguments_to_parser: give it to the module or the data"
_UPDATE = "the module makes it: configure_optimizers takes it from an argument"


@dataclass
class Classes:
    """What a program gives to LightningCLI.

    Args:
        model: The import path of the module's class; "" where each file names it.
        data: The same of the data.
    """

    model: str = ""
    data: str = ""


@dataclass
class ConfigReport:
    """A file and its translation.

    Args:
        path: The file.
        content: What ``paceline fit`` is to read.
        left: Line, key and sentence for each thing that is not in it.
    """

    path: Path
    content: dict[str, Any] = field(default_factory=dict)
    left: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def target(self) -> Path:
        """The file that is written, beside the other one."""
        return self.path.with_suffix(".paceline.yaml")

    def text(self) -> str:
        """The translation as YAML, with what is left as comments at the top."""
        head = [f"# {self.path.name}:{line}: {name}: {text}" for line, name, text in sorted(self.left)]
        body = yaml.safe_dump(self.content, sort_keys=False, allow_unicode=True)
        return "\n".join([*head, body]) if head else body


def configs(path: Path) -> list[ConfigReport]:
    """The files of LightningCLI in a folder, or a file itself; none where no program there calls it."""
    folder = path if path.is_dir() else path.parent
    programs = python_files(folder) if path.is_dir() or is_config(path) else []
    found = [classes for one in programs if (classes := _classes_in(one)) is not None]
    files = sorted(one for one in folder.rglob("*") if is_config(one)) if path.is_dir() else [path]
    given = found[0] if found else Classes()
    reports = [translate(one, one.read_text("utf-8"), given) for one in files if is_config(one)]
    return [one for one in reports if one is not None] if found or is_config(path) else []


def is_config(path: Path) -> bool:
    """Whether it may be a configuration file, and none that was written here."""
    return path.suffix in (".yaml", ".yml") and not path.stem.endswith(".paceline") and path.is_file()


def _classes_in(path: Path) -> Classes | None:
    try:
        return classes_of(read(path)[1], path.stem)
    except Unreadable:
        return None


def classes_of(source: ast.Module, stem: str) -> Classes | None:
    """What a program gives to LightningCLI; None where it does not call it.

    Args:
        source: The program.
        stem: The name under which it is imported.
    """
    paths: dict[str, str] = {}
    names = {"LightningCLI"}
    for node in ast.walk(source):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            paths |= {one.asname or one.name: f"{node.module}:{one.name}" for one in node.names}
        elif isinstance(node, ast.ClassDef):
            paths[node.name] = f"{stem}:{node.name}"
            if any(ast.unparse(base).rpartition(".")[2] in names for base in node.bases):
                names.add(node.name)
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names:
            given = dict(zip(("model_class", "datamodule_class"), node.args, strict=False))
            given |= {one.arg: one.value for one in node.keywords if one.arg}
            found = [given.get(name) for name in ("model_class", "datamodule_class")]
            return Classes(*(paths.get(one.id, "") if isinstance(one, ast.Name) else "" for one in found))
    return None


def translate(path: Path, text: str, classes: Classes) -> ConfigReport | None:
    """Translate a file.

    Args:
        path: Where it is.
        text: What it has.
        classes: Of the program that reads it.

    Returns:
        None for a file that is none of LightningCLI's.
    """
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    if isinstance(content, dict) and isinstance(content.get("fit"), dict):
        root, content = _children(root)["fit"][1], content["fit"]
    if not isinstance(content, dict) or not {"trainer", "model", "data"} & set(content):
        return None
    writer = _Writer(ConfigReport(path))
    for key, value in content.items():
        line, node = _children(root)[key]
        if key == "trainer":
            writer.trainer(node, value or {})
        elif key in ("model", "data"):
            writer.part(line, key, value or {}, classes)
        elif key == "seed_everything":
            if isinstance(value, int) and not isinstance(value, bool):
                writer.report.content.setdefault("trainer", {})["seed"] = value
        elif value is not None:
            known = {"optimizer": _UPDATE, "lr_scheduler": _UPDATE, "ckpt_path": "write --resume PATH"}
            writer.leave(line, key, known.get(key, _NO_KEY))
    return writer.report


def _children(node: Any) -> dict[Any, tuple[int, Any]]:
    """The line and the node of each key."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: (key.start_mark.line + 1, value) for key, value in node.value}


class _Writer:
    def __init__(self, report: ConfigReport) -> None:
        self.report = report

    def leave(self, line: int, name: str, text: str) -> None:
        """Something cannot be translated."""
        self.report.left.append((line, name, text))

    def trainer(self, node: Any, given: dict[str, Any]) -> None:
        """The Trainer's arguments."""
        parts = {"callbacks": given.pop("callbacks", None), "loggers": given.pop("logger", None)}
        done = self._arguments("Trainer", "trainer", node, given, extra=False)
        self.report.content.setdefault("trainer", {}).update(done)
        for name, value in parts.items():
            key = "logger" if name == "loggers" else name
            if value is False:
                self.report.content["trainer"][name] = False
            elif value is not None and value is not True:
                inside = _children(node)[key][1]
                items = value if isinstance(value, list) else [value]
                nodes = inside.value if isinstance(inside, yaml.SequenceNode) else [inside]
                where = f"trainer.{key}"
                found = [self._object(where, *one) for one in zip(nodes, items, strict=True)]
                self.report.content[name] = [one for one in found if one is not None]

    def part(self, line: int, key: str, given: dict[str, Any], classes: Classes) -> None:
        """The module, or the data."""
        name = "module" if key == "model" else "data"
        path = getattr(classes, key)
        if "class_path" in given:
            path, given = given["class_path"], given.get("init_args") or {}
        if not path:
            self.leave(line, key, "its class is not in this file: write class: my_project:Name")
        head = {"class": path} if path else {}
        self.report.content[name] = head | {k: _plain(v) for k, v in given.items()}

    def _object(self, where: str, node: Any, given: Any) -> Any:
        """A callback or logger; None where it cannot be translated."""
        path = given if isinstance(given, str) else given.get("class_path", "")
        line = node.start_mark.line + 1
        arguments = {} if isinstance(given, str) else given.get("init_args") or {}
        last = path.rpartition(".")[2]
        is_theirs = find_library(path, [LIGHTNING]) is not None or "." not in path
        if not is_theirs:
            self.leave(line, f"{where}: {path}", "it has to be one of paceline.callbacks: migrate its code")
            return {"class": path} | {k: _plain(v) for k, v in arguments.items()}
        entry = LIGHTNING.entry(last)
        if entry is None or not entry.new or LIGHTNING.owner(last) is None:
            self.leave(line, f"{where}: {last}", entry.text if entry else "it has no counterpart here")
            return None
        inside = _children(node).get("init_args", (0, None))[1]
        done = self._arguments(last, f"{where}: {last}", inside, arguments)
        return {"class": entry.new.rpartition(".")[2], **done}

    def _arguments(
        self, kind: str, where: str, node: Any, given: dict[str, Any], extra: bool = True
    ) -> dict[str, Any]:
        """The arguments of one of Lightning's classes as they are here."""
        owner = LIGHTNING.owners[kind]
        values = {name: cst.parse_expression(repr(_plain(value))) for name, value in given.items()}
        translated = CALLS.get((kind, ""))
        done = translated(values) if translated else Translation()
        found: dict[str, Any] = {}
        for name, value in given.items():
            line = _children(node)[name][0]
            entry = done.entries.get(name) or owner.arguments.get(name) or _unknown(owner)
            put = put_of(name, entry, done, False, True)
            if put is None and entry.group is Group.REWRITE:
                self.leave(line, f"{where}.{name}", entry.text)
            elif put is None:
                put = [(name, None)]
            for new, code in put or ():
                try:
                    found[str(new)] = _plain(value) if code is None else ast.literal_eval(code)
                except (ValueError, SyntaxError):
                    self.leave(line, f"{where}.{name}", entry.text or f"write {new}={code}")
        if extra:
            found |= {name: ast.literal_eval(code) for name, code in done.extra}
        return found


def _unknown(owner: Owner) -> Entry:
    return rewrite(owner.other_argument or "no such argument here")


def _plain(value: Any) -> Any:
    """A value with ``class`` and its arguments in the place of ``class_path`` and ``init_args``."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping) and ("class_path" in value or {*value} == {"init_args"}):
        named = {"class": value["class_path"]} if "class_path" in value else {}
        return named | _plain(value.get("init_args") or {})
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value
