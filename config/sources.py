"""Settings from several sources, each value with the place that it comes from.

In this order, a later one over an earlier one: a preset, config files, ``PACELINE_*`` variables of the
environment, and ``key=value`` of the command line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import PacelineError, nearest
from ..trainer.config.yaml_reader import YamlText, read_yaml, read_yaml_file

CLASS = "class"
"""The key of a mapping that names a class or function; the other keys are its arguments."""
COMMAND_LINE = "the command line"
PREFIX = "PACELINE_"
OWN_VARIABLES = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "TRACEBACK",
        "REPLAY",
        "TRACE",
        "ONE_STEP",
        "CHECK",
        "JOB",
        "LAUNCHER",
        "FAULTS",
        "TEST_MARK",
        "CACHE",
    )
)
"""Variables of this package that are no settings."""
_OF_A_RUN = ("name", "trainer", "module", "config", "parent")
"""The sections of a run's config.yaml."""
_SHORT = {"callbacks": ("trainer", "callbacks"), "loggers": ("trainer", "loggers")}
"""Keys that may be written without the section that they are in."""


class Override(NamedTuple):
    """One ``key=value``.

    Attributes:
        key: Dotted.
        value: As YAML reads it.
        adds: Whether it was written ``key+=value``.
    """

    key: str
    value: Any
    adds: bool = False


class Settings:
    """Nested values, and by dotted key the place that each comes from.

    Attributes:
        values: Plain data.
        places: ``my.yaml:3``, ``preset tiny``, ``PACELINE_EPOCHS`` or ``the command line``, by dotted key.

    Example:
        >>> settings = Settings()
        >>> settings.add({"epochs": 3, "model": {"depth": 4}}, {}, "preset tiny")
        >>> settings.put(Override("model.depth", 6), COMMAND_LINE)
        >>> settings.values, settings.place("model.depth"), settings.place("epochs")
        ({'epochs': 3, 'model': {'depth': 6}}, 'the command line', 'preset tiny')
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}

    def place(self, key: str) -> str | None:
        """Where a value comes from: its place or that of what it is in, and other sources of its parts."""
        parts = []
        if self._has_parts(key):
            parts = [place for one, place in self.places.items() if one.startswith(f"{key}.")]
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        own = self.places.get(key) or (parts[0] if parts else None)
        if own is None:
            return None
        others = [place for place in parts if _source(place) != _source(own)]
        return ", ".join(dict.fromkeys([own, *others]))

    def _has_parts(self, key: str) -> bool:
        """Whether there may be places below: a file can have thousands of keys, and each is asked for."""
        value: Any = self.values
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return True  # a key with dots in it, or of a list
            value = value[part]
        return isinstance(value, (Mapping, list))

    def add(self, values: Mapping[str, Any], places: Mapping[str, str], default: str) -> None:
        """Add a source, which takes precedence; mappings are merged, unless they name another class.

        Args:
            values: Its content.
            places: By dotted key.
            default: The place of all others.

        Raises:
            PacelineError: where it gives a key twice, in its section and without it.
        """
        places = {_in_section(key): place for key, place in places.items()}
        values = dict(values)
        for key, (section, name) in _SHORT.items():
            if key not in values:
                continue
            inside = values.get(section)
            if isinstance(inside, Mapping) and name in inside:
                raise PacelineError(
                    f"{key} and {section}.{name} are the same setting",
                    code="conflicting-arguments",
                    where=places.get(f"{section}.{name}", default),
                    fix="give one of the two",
                )
            values[section] = {**(inside if isinstance(inside, Mapping) else {}), name: values.pop(key)}
        self._merge(self.values, values, "", places, default)

    def _merge(
        self,
        into: dict[str, Any],
        values: Mapping[str, Any],
        above: str,
        places: Mapping[str, str],
        default: str,
    ) -> None:
        for key, value in values.items():
            self._merge_one(into, key, value, f"{above}{key}", places, default)

    def _merge_one(
        self,
        into: Any,
        key: Any,
        value: Any,
        path: str,
        places: Mapping[str, str],
        default: str,
    ) -> None:
        before = into.get(key) if isinstance(into, dict) else into[key]
        if isinstance(value, Mapping) and _merges(before, value):
            if not isinstance(before, dict):
                into[key] = {CLASS: before}
            self._merge(into[key], value, f"{path}.", places, default)
        else:
            self._forget(path, before)
            into[key] = _copied(value)
            self.places[path] = places.get(path, default)
            if isinstance(value, (Mapping, list)):
                self.places |= {one: place for one, place in places.items() if one.startswith(f"{path}.")}

    def _forget(self, path: str, value: Any) -> None:
        """Drop the places of a value, and of what is in it."""
        self.places.pop(path, None)
        if isinstance(value, (Mapping, list)):
            for key in [key for key in self.places if key.startswith(f"{path}.")]:
                del self.places[key]

    def put(self, given: Override, place: str) -> None:
        """Set one value, as ``add`` does; ``+=`` adds to a list.

        Raises:
            PacelineError: for a key inside of what holds none.
        """
        key = _in_section(given.key)
        holder: Any = self.values
        *parents, last = key.split(".")
        for depth, parent in enumerate(parents):
            inner = holder[int(parent)] if _is_index(holder, parent) else _inner(holder, parent)
            if isinstance(inner, str):
                inner = {CLASS: inner}
                holder[int(parent) if isinstance(holder, list) else parent] = inner
            if not isinstance(inner, (dict, list)):
                raise PacelineError(
                    f"{given.key}: {'.'.join(parents[: depth + 1])} holds a value, not further keys",
                    code="setting-syntax",
                    where=place,
                )
            holder = inner
        at: Any = int(last) if _is_index(holder, last) else last
        if isinstance(holder, list) and at == last:
            raise PacelineError(
                f"{given.key}: a list of {len(holder)} has no item {last!r}",
                code="setting-syntax",
                where=place,
            )
        if given.adds:
            before = holder.get(last) if isinstance(holder, dict) else holder[at]
            items = before if isinstance(before, list) else [] if before is None else [before]
            more = given.value if isinstance(given.value, list) else [given.value]
            holder[at] = [*items, *more]
            self.places |= {f"{key}.{len(items) + n}": place for n in range(len(more))}
            self.places.setdefault(key, place)
        else:
            self._merge_one(holder, at, given.value, key, {}, place)


def _source(place: str) -> str:
    """A place without its line."""
    return re.sub(r":\d+$", "", place)


def _is_index(holder: Any, part: str) -> bool:
    return isinstance(holder, list) and part.isdecimal() and int(part) < len(holder)


def _inner(holder: Any, key: str) -> Any:
    if isinstance(holder, list):
        return None
    if holder.get(key) is None:
        holder[key] = {}
    return holder[key]


def _merges(before: Any, value: Mapping[str, Any]) -> bool:
    """Whether a mapping is merged: not with one that names another class."""
    if not isinstance(before, dict):
        return isinstance(before, str)  # a class without arguments
    return len({before.get(CLASS), value.get(CLASS)} - {None}) < 2


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _in_section(key: str) -> str:
    first, dot, rest = key.partition(".")
    return ".".join(_SHORT[first]) + dot + rest if first in _SHORT else key


def read_override(text: str) -> Override:
    """``key=value`` or ``key+=value``; the value is YAML, and a string where it is none or a comment.

    Raises:
        PacelineError: for a text of another form.

    Example:
        >>> read_override("callbacks+=ema")
        Override(key='callbacks', value='ema', adds=True)
    """
    key, equals, value = text.partition("=")
    adds = key.endswith("+")
    key = key.removesuffix("+").strip()
    if not equals or not re.fullmatch(r"[A-Za-z_][^\s.=]*(\.[^\s.=]+)*", key):
        raise PacelineError(
            f"{text!r} is no setting", code="setting-syntax", allowed="key=value, for instance epochs=5"
        )
    return Override(key, _read_value(value, f"the value of {key}"), adds)


def _read_value(text: str, where: str) -> Any:
    if text.lstrip().startswith("#"):  # a comment in YAML: a colour, a channel
        return text
    try:
        return read_yaml(text, where).content
    except PacelineError:
        if text.lstrip()[:1] in ("[", "{"):
            raise
        return text


def read_environment(variables: Mapping[str, str] = os.environ) -> list[tuple[Override, str]]:
    """Settings of the environment, with the variable of each: ``PACELINE_TRAINER__MAX_EPOCHS=3``.

    Two underscores stand for a dot. Capitals stand for small letters; a part of mixed case is taken as it
    is: ``PACELINE_SCHEDULER__T_max``.

    Example:
        >>> read_environment({"PACELINE_MODEL__DEPTH": "6", "HOME": "/root"})
        [(Override(key='model.depth', value=6, adds=False), 'PACELINE_MODEL__DEPTH')]
    """
    found = []
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in OWN_VARIABLES:
            parts = name.removeprefix(PREFIX).split("__")
            key = ".".join(part.lower() if part.isupper() else part for part in parts if part)
            found.append((Override(key, _read_value(variables[name], name)), name))
    return found


def read_config_file(file: Path, is_target: bool = False) -> YamlText:
    """A config file; of a run's own config.yaml, what the run was given.

    Args:
        file: The file.
        is_target: Whether it is to say by itself what is trained.

    Raises:
        PacelineError: where it cannot be read, is no mapping, or is to repeat a run that a script started.
    """
    found = read_yaml_file(file)
    if not isinstance(found.content, dict):
        raise PacelineError(
            "a config file holds key: value lines", code="config-unreadable", where=str(file)
        )
    if not is_of_a_run(found.content):
        return found
    unknown = next((key for key in found.content if key not in _OF_A_RUN), None)
    if unknown is not None:
        raise PacelineError(
            f"{unknown}: the config.yaml of a run has no such section",
            code="setting-syntax",
            where=found.places[unknown],
            meant=nearest(unknown, _OF_A_RUN),
            fix="what the run was given is under config: change it there",
        )
    given = found.content.get("config")
    if isinstance(given, dict):
        prefix = "config."
        places = {k.removeprefix(prefix): v for k, v in found.places.items() if k.startswith(prefix)}
        return YamlText(given, places)
    if is_target:
        raise PacelineError(
            "a script started this run, and its config.yaml cannot repeat it",
            code="script-without-settings",
            where=str(file),
            fix=f"{_command_of(file.parent)}; --config {file} takes the Trainer's arguments from it",
        )
    return YamlText(_of_a_script(found.content), found.places)


def _command_of(run: Path) -> str:
    """What started a run, as far as it is known."""
    from ..trainer.run.directory import read_environment  # loads torch

    environment = read_environment(run)
    try:
        return f"in {environment['folder']}: python {shlex.join(environment['program'])}"
    except (KeyError, TypeError):
        return "start the script again"


def is_of_a_run(content: Mapping[str, Any]) -> bool:
    """Whether a file is the config.yaml that a run has written."""
    module = content.get("module")
    return isinstance(module, dict) and set(module) == {CLASS, "hparams"} and "name" in content


def _of_a_script(content: Mapping[str, Any]) -> dict[str, Any]:
    """The Trainer's arguments of a run that a script started; objects in them are known by class only."""
    trainer = dict(content.get("trainer") or {})
    for name in ("callbacks", "loggers", "profile"):
        if isinstance(trainer.get(name), (list, str)):
            del trainer[name]
    return {"trainer": trainer}


def overrides_of(texts: Iterable[str]) -> list[tuple[Override, str]]:
    """``key=value`` of the command line, with its place."""
    return [(read_override(text), COMMAND_LINE) for text in texts]
