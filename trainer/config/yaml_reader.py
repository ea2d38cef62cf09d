"""YAML as people mean it, of bounded size, with the line of everything that is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ...errors import PacelineError, cut

_MOST_BYTES = 1 << 20
_MOST_NODES = 10_000
_DEEPEST = 50


class _Loader(yaml.SafeLoader):
    """Of YAML 1.2: ``1e-3`` is a number, ``no``, ``off``, ``1:30`` and ``2024-01-01`` are words."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node; one that its tag does not take, as in ``!!bool foo``, has its line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, KeyError):
            what = f"a value that is no {node.tag.rpartition(':')[2]}: {cut(str(node.value), 60)}"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from None


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag.rpartition(":")[2] not in ("bool", "float", "int", "timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|false|False)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(\d[\d_]*|0x[\da-fA-F_]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?((\d[\d_]*)?\.\d[\d_]*|\d[\d_]*\.)([eE][-+]?\d+)?$|^[-+]?\d[\d_]*[eE][-+]?\d+$"
        r"|^[-+]?\.(inf|Inf)$|^\.(nan|NaN)$"
    ),
    list("-+0123456789."),
)


def _integer(loader: _Loader, node: Any) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(text, 16 if "x" in text else 10)  # 010 is ten; an 8 in YAML 1.1


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


class YamlText(NamedTuple):
    """What a text holds, and where: ``file:line`` by dotted key path; items of lists by their number."""

    content: Any
    places: dict[str, str]


def read_yaml_file(file: Path) -> YamlText:
    """The content of a YAML file.

    Raises:
        PacelineError: for a file that cannot be read, with the line of what is wrong in it.
    """
    try:
        with file.expanduser().open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PacelineError(
            "the config file cannot be read", code="config-unreadable", where=str(file), got=str(error)
        ) from None
    if len(data) > _MOST_BYTES:
        raise PacelineError(
            "the config file is larger than 1 MB", code="config-unreadable", where=str(file)
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PacelineError(
            "the config file is not written in UTF-8",
            code="config-unreadable",
            where=f"{file}:{data.count(10, 0, error.start) + 1}",
            got=f"the byte 0x{data[error.start]:02x}",
            fix="save it as UTF-8",
        ) from None
    return read_yaml(text, str(file))


def read_yaml(text: str, where: str) -> YamlText:
    """The content of a YAML text.

    Args:
        text: The text.
        where: What it is, for messages: a file.

    Raises:
        PacelineError: with the line, for what is no YAML, nested more than 50 levels deep, of more than
            10,000 values when its aliases are expanded, for a key that is no name, and for one given twice.
    """
    try:
        _refuse_depth(text, where)
        loader = _Loader(text)
        node = loader.get_single_node()
        _Check(where).size_of(node)
        content = None if node is None else loader.construct_document(node)
    except PacelineError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f":{mark.line + 1}"
        problem = error.problem or error.context or str(error)
        raise PacelineError(
            "this is no YAML", code="config-unreadable", where=f"{where}{line}", got=problem
        ) from None
    except yaml.reader.ReaderError as error:
        line = f":{text.count(chr(10), 0, error.position) + 1}"
        raise PacelineError(
            "this is no YAML", code="config-unreadable", where=f"{where}{line}", got=error.reason
        ) from None
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise PacelineError(
            "this is no YAML", code="config-unreadable", where=where, got=str(error)[:200]
        ) from None
    return YamlText(content, dict(_places(node, where, "")))


def _refuse_depth(text: str, where: str) -> None:
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            line = event.start_mark.line + 1 if event.start_mark else 1
            deep = f"the YAML is nested more than {_DEEPEST} levels deep"
            raise PacelineError(deep, code="config-unreadable", where=f"{where}:{line}")


class _Check:
    """Counts the values of a text as aliases expand them."""

    def __init__(self, where: str) -> None:
        self._where, self._sizes = where, dict[int, int]()
        self._open: set[int] = set()

    def size_of(self, node: Any) -> int:
        """The values in a node, aliases expanded.

        Raises:
            PacelineError: as ``read_yaml`` describes.
        """
        if node is None or isinstance(node, yaml.ScalarNode):
            return 1
        key = id(node)
        if key in self._sizes:
            return self._sizes[key]
        if key in self._open:
            raise self._error(node, "an alias is a part of itself")
        self._open.add(key)
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            parts = [part for pair in node.value for part in pair]
        else:
            parts = node.value
        size = 1 + sum(map(self.size_of, parts))
        self._open.discard(key)
        self._sizes[key] = size
        if size > _MOST_NODES:
            raise self._error(node, f"the YAML holds more than {_MOST_NODES} values, aliases included")
        return size

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            kind = key.tag.rpartition(":")[2]
            if kind not in ("str", "merge"):
                raise self._error(key, "a key is a name", str(key.value) if kind != "seq" else "a list")
            if kind == "str" and key.value in seen:
                line = seen[key.value]
                raise self._error(key, f"the key {cut(key.value)} is given twice: in line {line} too")
            if kind == "str":
                seen[key.value] = key.start_mark.line + 1

    def _error(self, node: Any, what: str, *got: str) -> PacelineError:
        options = {"got": got[0]} if got else {}
        return PacelineError(
            what, code="config-unreadable", where=f"{self._where}:{node.start_mark.line + 1}", **options
        )


def _places(node: Any, where: str, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        parts = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(str(number), value, value) for number, value in enumerate(node.value)]
    else:
        return
    for name, at, value in parts:
        yield f"{prefix}{name}", f"{where}:{at.start_mark.line + 1}"
        yield from _places(value, where, f"{prefix}{name}.")
