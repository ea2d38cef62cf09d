"""What a configuration file of another trainer becomes here, key by key."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ...errors import cut

READ = "read"
DEFAULT = "default"
ELSEWHERE = "elsewhere"
NONE = "no counterpart"
REFUSED = "refused"
UNKNOWN = "unknown"
OUTCOMES = (READ, DEFAULT, ELSEWHERE, NONE, REFUSED, UNKNOWN)


@dataclass(frozen=True)
class Note:
    """What became of one key.

    Args:
        path: The key, with dots: ``fsdp_config.fsdp_version``.
        place: ``file:line``.
        value: What the file has.
        became: What became of it, in words.
        outcome: ``read``: it became an argument; ``default``: it needs none; ``elsewhere``: it belongs to
            another place; ``no counterpart``: it is not there; ``refused``: it prevents the whole file;
            ``unknown``: it is no key of theirs.
    """

    path: str
    place: str
    value: Any
    became: str
    outcome: str


@dataclass(frozen=True)
class Reading:
    """What a file became.

    Args:
        source: Whose file it is: ``"Accelerate"``, ``"DeepSpeed"``, ``"LLaMA-Factory"`` or ``"Axolotl"``.
        trainer: Arguments of ``Trainer``, as plain data: a strategy with options is a mapping of its
            ``class`` and its arguments.
        launch: The command for each machine, or one for all of them; empty for one machine.
        notes: One for each key.
        recipe: The recipe, where the file says what is trained; else empty.
        settings: The recipe's.
    """

    source: str
    trainer: dict[str, Any]
    launch: tuple[str, ...]
    notes: tuple[Note, ...]
    recipe: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def refused(self) -> list[Note]:
        """The keys that cannot be served: ``trainer`` is not to be used."""
        return [note for note in self.notes if note.outcome == REFUSED]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        notes = [asdict(note) for note in self.notes]
        launch = list(self.launch)
        own = {"recipe": self.recipe, "settings": self.settings} if self.recipe else {}
        return {"source": self.source, **own, "trainer": self.trainer, "launch": launch, "notes": notes}


def text_of(value: Any, most: int = 80) -> str:
    """A value of a file on one line: a word as it is, else as JSON has it.

    Example:
        >>> text_of({"stage": 3, "overlap_comm": True})
        '{"stage": 3, "overlap_comm": true}'
    """
    text = value if isinstance(value, str) and value else json.dumps(value, default=str, ensure_ascii=False)
    return cut(" ".join(text.split()), most)
