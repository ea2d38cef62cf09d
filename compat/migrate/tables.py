"""The form of the tables: what each name of another library becomes here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Group(Enum):
    """What becomes of a name, in the order of a report."""

    RUNS = "runs as it is"
    CHANGES = "changes meaning"
    REWRITE = "has to be rewritten"

    @property
    def key(self) -> str:
        """The group's name in JSON: ``runs``, ``changes`` or ``rewrite``."""
        return self.name.lower()


@dataclass(frozen=True)
class Entry:
    """What one name becomes.

    Args:
        group: Which list it belongs to.
        text: One sentence: how its meaning changes, or what to write here.
        new: What ``--write`` puts in its place: a dotted name for something imported, a name for an
            attribute or an argument, "" where it is left out; None where it is left as it is.
    """

    group: Group
    text: str = ""
    new: str | None = None


@dataclass(frozen=True)
class Owner:
    """A class of another library: its arguments, what an object of it has, what a subclass defines.

    Args:
        entry: The class itself, where it is imported or named.
        arguments: Of its constructor, by keyword.
        positional: The constructor's arguments in order.
        members: Attributes and methods, as they are read from an object.
        calls: Arguments of methods, by method and keyword.
        methods: What a subclass defines.
        kinds: The class of a member's value: ``trainer`` of a module is a ``Trainer``.
        other_member: The sentence for a member that is in no table; None leaves it out.
        other_argument: The sentence for an argument that is in no table; None leaves it out.
        other_method: The sentence for a method ``on_...`` that is in no table; None leaves it out.
    """

    entry: Entry
    arguments: Mapping[str, Entry] = field(default_factory=dict)
    positional: tuple[str, ...] = ()
    members: Mapping[str, Entry] = field(default_factory=dict)
    calls: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)
    methods: Mapping[str, Entry] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    other_member: str | None = None
    other_argument: str | None = None
    other_method: str | None = None


@dataclass(frozen=True)
class Library:
    """All tables of one library.

    Args:
        name: As reports name it.
        packages: The import names, those of subpackages first.
        owners: Its classes.
        names: Everything else that is imported from it; ``utilities.ModelSummary`` is one in that module,
            where another one has the class of the name.
        modules: Submodules, which are imported to take names from.
        ignored: Submodules of which nothing is reported.
        other: The sentence for an import that is in no table; None leaves it out, and a file that imports
            nothing else from the library does not count as its code.
    """

    name: str
    packages: tuple[str, ...]
    owners: Mapping[str, Owner]
    names: Mapping[str, Entry] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    other: str | None = None

    def entry(self, name: str) -> Entry | None:
        """What an import becomes.

        Args:
            name: Without its package; the last part counts.
        """
        last = name.rpartition(".")[2]
        owner = self.owner(name)
        if owner is not None:
            return owner.entry
        other = self.names.get(_in_module(name))
        if other is not None:
            return other
        found = self.names.get(last)
        if found is not None or self.other is None:
            return found
        known = last in self.modules or name.partition(".")[0] in self.ignored
        return None if known else Entry(Group.REWRITE, self.other)

    def owner(self, name: str) -> Owner | None:
        """The class of that name, in any of the library's modules but those that have another one."""
        if _in_module(name) in self.names:
            return None
        return self.owners.get(name.rpartition(".")[2])


def _in_module(name: str) -> str:
    return f"{name.partition('.')[0]}.{name.rpartition('.')[2]}"


def runs(text: str = "", new: str | None = None) -> Entry:
    """What needs no change."""
    return Entry(Group.RUNS, text, new)


def changes(text: str, new: str | None = None) -> Entry:
    """What is accepted, and means something else."""
    return Entry(Group.CHANGES, text, new)


def rewrite(text: str, new: str | None = None) -> Entry:
    """What has to be written in another way."""
    return Entry(Group.REWRITE, text, new)


def imported(new: str) -> Entry:
    """A name that is imported from somewhere else here: ``paceline.callbacks.EMA``."""
    module, _, name = new.rpartition(".")
    return Entry(Group.REWRITE, f"from {module} import {name}", new)


def renamed(new: str, more: str = "") -> Entry:
    """A name that is called something else here."""
    return Entry(Group.REWRITE, f"it is called {new} here" + (f"; {more}" if more else ""), new)


def dropped(why: str) -> Entry:
    """A name that is left out here."""
    return Entry(Group.REWRITE, f"leave it out: {why}", "")


def all_of(names: str, entry: Entry) -> dict[str, Entry]:
    """The same entry for several names."""
    return dict.fromkeys(names.split(), entry)
