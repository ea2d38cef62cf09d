"""Reads a mapping of a configuration file value by value, and keeps an account of its keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import PacelineError, nearest, report, shown
from ...trainer.config.yaml_reader import YamlText
from .reading import DEFAULT, NONE, READ, UNKNOWN, Note, text_of

Known = Mapping[str, tuple[str, str]]
"""Outcome and sentence, by key."""
_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0", "none"), False),
}
_MOST = 2**31
_EMPTY = "it is empty, as if it were not there"


class Findings:
    """The notes and the problems of one file.

    Args:
        text: The file's content, with places.
        where: The file, for keys whose line is not known.
        source: Whose file it is.
    """

    def __init__(self, text: YamlText, where: str, source: str) -> None:
        self._places, self._where, self.source = text.places, where, source
        self.notes: list[Note] = []
        self._problems: list[str] = []

    def place(self, path: str) -> str:
        """The ``file:line`` of a key."""
        return self._places.get(path, self._where)

    def note(self, path: str, value: Any, outcome: str, became: str) -> None:
        """Keep what became of a key."""
        self.notes.append(Note(path, self.place(path), value, became, outcome))

    def problem(self, path: str, text: str) -> None:
        """Keep what is wrong with a key."""
        self._problems.append(f"{path} ({self.place(path)}): {text}")

    def in_order(self) -> tuple[Note, ...]:
        """The notes in the order of the file; those of another file after them."""

        def line(note: Note) -> tuple[bool, int]:
            file, _, number = note.place.rpartition(":")
            return (file != self._where, int(number) if file else 0)

        return tuple(sorted(self.notes, key=line))

    def check(self) -> None:
        """Raise what was found to be wrong.

        Raises:
            PacelineError: one report of all problems.
        """
        if self._problems:
            raise report(
                f"the configuration of {self.source}", self._problems, "value", code="config-of-others"
            )


class Section:
    """One mapping of a file.

    A value that is empty is read as None. What is of the wrong type is a problem, and read as None.

    Args:
        findings: Takes the notes.
        values: The mapping.
        path: Its key; empty for the whole file.
        prefix: What its keys begin with; a key without it is read as if it had it.

    Attributes:
        findings: The same.
        values: The same.
    """

    def __init__(
        self, findings: Findings, values: Mapping[str, Any], path: str = "", prefix: str = ""
    ) -> None:
        self.findings, self._path = findings, path
        self._keys: dict[str, str] = {}
        for key in values:
            name = key if key.startswith(prefix) else prefix + key
            self._keys[key if name in values and name != key else name] = key
        self.values = values
        self._done: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def path(self, name: str) -> str:
        """The whole path of a key."""
        return ".".join(filter(None, [self._path, self._keys.get(name, name)]))

    def get(self, name: str) -> Any:
        """The value as it is; None where it is empty or not there."""
        value = self.values.get(self._keys.get(name, ""))
        return None if value is None or value in ("", {}, []) else value

    def section(self, name: str, prefix: str = "", keys: Iterable[str] = ()) -> Section:
        """The mapping under a key; one without values where there is none.

        Args:
            name: The key.
            prefix: What keys in it begin with.
            keys: Keys of it that people write beside it: they are read where there is no such mapping, and
                else a problem.
        """
        value = self.get(name)
        beside = {key: self.values[key] for key in keys if key in self.values}
        if value is None and beside:
            self._done.update(beside)
            return Section(self.findings, beside, self._path, prefix)
        for key in beside:
            self.problem(key, f"it belongs into {name}, below that line")
        if value is not None and not isinstance(value, dict):
            self.wrong(name, "key: value lines below it")
        if isinstance(value, dict):
            self._done.add(name)
        return Section(self.findings, value if isinstance(value, dict) else {}, self.path(name), prefix)

    def integer(self, name: str, least: int = 1) -> int | None:
        """An integer of at least ``least``, as people write them."""
        number = _number(self.get(name))
        if self.get(name) is not None and (number is None or not least <= number < _MOST or number % 1):
            self.wrong(name, f"an integer of at least {least}")
            return None
        return None if number is None else int(number)

    def number(self, name: str) -> float | None:
        """A number of at least 0."""
        number = _number(self.get(name))
        if self.get(name) is not None and (number is None or number < 0):
            self.wrong(name, "a number of at least 0")
            return None
        return number

    def switch(self, name: str) -> bool | None:
        """True or false, in the words that YAML has had for them."""
        value = self.get(name)
        if value is None:
            return None
        found = _SWITCHES.get(str(value).lower()) if isinstance(value, (bool, str, int)) else None
        if found is None:
            self.wrong(name, "true or false")
        return found

    def text(self, name: str) -> str | None:
        """A string; a number is one too."""
        value = self.get(name)
        if value is None:
            return None
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        if not plain:
            self.wrong(name, "a string")
        return str(value) if plain else None

    def word(self, name: str, choices: Iterable[str]) -> str | None:
        """One of these words, in any case; returned as it is among the choices."""
        value = self.get(name)
        if value is None:
            return None
        known = list(choices)
        by_folded = {choice.lower(): choice for choice in known}
        text = {True: "true", False: "no"}[value] if isinstance(value, bool) else str(value)
        found = by_folded.get(text.lower()) if isinstance(value, (str, int)) else None
        if found is None:
            meant = nearest(value, known) if isinstance(value, str) else None
            self.wrong(name, ", ".join(known) + (f"; did you mean {meant}?" if meant else ""))
        return found

    def wrong(self, name: str, allowed: str) -> None:
        """The value of a key is wrong; it is read as None."""
        self.problem(name, f"got {shown(self.get(name), 60)}; allowed: {allowed}")

    def problem(self, name: str, text: str) -> None:
        """Something is wrong with a key, which then gets no note."""
        if name not in self._done:
            self.findings.problem(self.path(name), text)
        self._done.add(name)

    def note(self, name: str, outcome: str, became: str) -> None:
        """What became of a key; nothing where it is not there, or is noted already."""
        if name not in self._keys or name in self._done:
            return
        self._done.add(name)
        if self.get(name) is None:
            outcome, became = DEFAULT, _EMPTY
        self.findings.note(self.path(name), self.values[self._keys[name]], outcome, became)

    def read(self, name: str, argument: str, value: Any) -> None:
        """A key became an argument."""
        self.note(name, READ, f"{argument}: {text_of(value)}")

    def rest(self, known: Known, also: Iterable[str] = ()) -> None:
        """Note the keys that are left: by the table, or as unknown.

        Args:
            known: What became of keys that are not read.
            also: Further names that an unknown key may have meant.
        """
        for name in self._keys:
            if name in self._done:
                continue
            if name in known:
                self.note(name, *known[name])
            elif self.get(name) is None:
                self.note(name, DEFAULT, _EMPTY)
            else:
                self._unknown(name, [*known, *also])

    def skip(self, became: str) -> None:
        """Note all keys that are left: they are not read."""
        for name in self._keys:
            self.note(name, NONE, became)

    def _unknown(self, name: str, known: list[str]) -> None:
        meant = nearest(name, known)
        what = f"{self.findings.source} has no such key"
        if meant is not None:  # a typo: what it was to set would be lost
            self.problem(name, f"{what}; did you mean {meant}?")
        else:
            self.note(name, UNKNOWN, f"{what} that is known here")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole_mapping(text: YamlText, where: str) -> dict[str, Any]:
    """The content of a file that is to be a mapping.

    Raises:
        PacelineError: where it is none, or empty.
    """
    if isinstance(text.content, dict) and text.content:
        return text.content
    if not text.content:
        raise PacelineError("the file is empty", code="config-unreadable", where=where)
    kind = type(text.content).__name__
    raise PacelineError(
        "a configuration holds key: value lines", code="config-unreadable", where=where, got=kind
    )
