"""A config of one of our recipes, as it grows from the keys of another trainer's file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from ..reading import DEFAULT, NONE, READ, REFUSED, Reading, text_of
from ..section import Known, Section

SettingsOf = Callable[[str], Collection[str]]
"""The names of a recipe's settings, by its name."""
Table = Mapping[str, tuple[str, str]]
"""What kind of value a key has, and our setting; ``trainer.`` begins those of the Trainer."""
NOT_READ = "it is not read: the file is refused"
_OF_ADAPTERS = ("modules_to_save", "adapter")
OFF: tuple[Any, ...] = (False, 0, "no", "none", "off", "disabled", "false", [], {})


class Draft:
    """Settings of a recipe, and the notes of the keys they are made of.

    Args:
        top: The whole file.
        recipe: The name of the recipe.
        known: The names of its settings.

    Attributes:
        settings: The recipe's.
        trainer: Arguments of ``Trainer``.
    """

    def __init__(self, top: Section, recipe: str, known: Collection[str]) -> None:
        self.top, self.recipe, self._known = top, recipe, known
        self.settings: dict[str, Any] = {}
        self.trainer: dict[str, Any] = {}

    def has(self, name: str) -> bool:
        """Whether the recipe, or the Trainer, has this setting."""
        return name.startswith("trainer.") or name in self._known

    def get(self, name: str) -> Any:
        """What a setting has become so far; None: nothing."""
        values, short = self._place(name)
        return values.get(short)

    def set(self, name: str, value: Any) -> None:
        """Give a setting a value that no key says, or that several do."""
        values, short = self._place(name)
        values[short] = value

    def usual(self, **values: Any) -> None:
        """Their defaults, for settings that no key has said and that the recipe has."""
        for name, value in values.items():
            if self.has(name) and name not in self.settings:
                self.settings[name] = value

    def put(
        self,
        key: str,
        name: str,
        value: Any,
        more: str = "",
        without: tuple[str, str] | None = None,
    ) -> None:
        """A key that becomes a setting.

        Args:
            key: Theirs.
            name: Ours.
            value: Of the setting.
            more: What the note says beside it.
            without: Outcome and sentence where the recipe has no such setting.
        """
        if not self.has(name):
            self.top.note(key, *(without or (NONE, f"the recipe {self.recipe} has no {name}")))
            return
        self.set(name, value)
        self.top.note(key, READ, f"{name}: {text_of(value)}" + (f"; {more}" if more else ""))

    def translate(self, table: Table, idle: str | None = None) -> None:
        """Take over all keys of a table that the file has.

        Args:
            table: Them.
            idle: Why those of adapters have no use; None: they have.
        """
        for key, (kind, name) in table.items():
            if key not in self.top:
                continue
            value = _READERS[kind](self.top, key)
            if idle is not None and (name.startswith("lora_") or name in _OF_ADAPTERS):
                self.top.note(key, DEFAULT, idle)
            elif kind == "on" and value is False:
                self.top.note(key, DEFAULT, "it is off")
            elif value is not None:
                self.put(key, name, value)

    def callback(self, name: str, **arguments: Any) -> None:
        """Add a callback, or arguments to the one of its class."""
        several = self.trainer.setdefault("callbacks", [])
        for one in several:
            if one["class"] == name:
                one.update(arguments)
                return
        several.append({"class": name, **arguments})

    def finish(self, source: str, known: Known, also: Iterable[str] = ()) -> Reading:
        """Note the keys that are left, and return all of it.

        Args:
            source: Whose file it is.
            known: What becomes of keys that no setting is made of.
            also: Keys that are read elsewhere, for typos.

        Raises:
            PacelineError: one report of values that are wrong, and of keys that are typos.
        """
        for key in known:
            value = self.top.get(key)
            if value is not None and is_off(value) and known[key][0] != DEFAULT:
                self.top.note(key, DEFAULT, "it is off")
        for key in also:
            self.top.note(key, NONE, f"the recipe {self.recipe} has no use for it")
        self.top.rest(known, also)
        self.top.findings.check()
        notes = self.top.findings.in_order()
        return Reading(source, self.trainer, (), notes, self.recipe, self.settings)

    def _place(self, name: str) -> tuple[dict[str, Any], str]:
        of_trainer = name.startswith("trainer.")
        return (self.trainer, name.partition(".")[2]) if of_trainer else (self.settings, name)


def is_off(value: Any) -> bool:
    """Whether a value switches something off."""
    return value in OFF or (isinstance(value, str) and value.lower() in OFF)


def refused(source: str, top: Section, key: str, sentence: str) -> Reading:
    """A file that is refused for one key."""
    top.note(key, REFUSED, sentence)
    top.skip(NOT_READ)
    top.findings.check()
    return Reading(source, {}, (), top.findings.in_order())


def words(section: Section, key: str) -> list[str] | None:
    """A list of words, or words between commas."""
    value = section.get(key)
    if value is None:
        return None
    parts = value if isinstance(value, list) else str(value).split(",")
    if isinstance(value, (dict, bool)) or not all(isinstance(one, (str, int)) for one in parts):
        section.wrong(key, "a list of words, or words between commas")
        return None
    return [str(one).strip() for one in parts if str(one).strip()]


def _positive(section: Section, key: str) -> float | None:
    found = section.number(key)
    if found == 0:
        section.wrong(key, "a number above 0")
        return None
    return found


_READERS: dict[str, Callable[[Section, str], Any]] = {
    "integer": Section.integer,
    "count": partial(Section.integer, least=0),
    "number": Section.number,
    "positive": _positive,
    "switch": Section.switch,
    "on": Section.switch,
    "text": Section.text,
    "words": words,
}
