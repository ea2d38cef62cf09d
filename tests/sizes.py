"""Prints how large what grows is: names of the interfaces, flat files, lines. python tests/sizes.py"""

from __future__ import annotations

import inspect
from pathlib import Path

import paceline
from paceline.callbacks import CountersView, LoopView, RanksView, TrainerView
from paceline.strategies import Strategy

ROOT = Path(paceline.__file__).parent
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def interfaces() -> dict[str, int]:
    """What a user, a callback and a strategy of another package have to know of, counted."""
    arguments = inspect.signature(paceline.Trainer.__init__).parameters.values()
    bases = [kind for kind in paceline.Trainer.__mro__[1:] if kind is not object]
    return {
        "arguments of Trainer": sum(one.kind is one.KEYWORD_ONLY for one in arguments),
        "public names of Trainer": len(public(paceline.Trainer)),
        "bases of Trainer": len(bases),
        "members of TrainerView": len(public(TrainerView)),
        "members of its parts": sum(len(public(kind)) for kind in (RanksView, CountersView, LoopView)),
        "public names of Strategy": len({*public(Strategy), *inspect.get_annotations(Strategy)}),
    }


def flat_files() -> dict[str, int]:
    """How many modules lie in a folder itself."""
    places = {"root": ROOT} | {name: ROOT / name for name in FOLDERS}
    places |= {
        f"trainer/{p.name}": p for p in (ROOT / "trainer").iterdir() if (p / "__init__.py").is_file()
    }
    return {name: len([*place.glob("*.py")]) for name, place in sorted(places.items())}


def lines() -> dict[str, int]:
    """Lines of the modules below a folder."""
    found = {"root": count(ROOT.glob("*.py"))}
    return found | {name: count((ROOT / name).rglob("*.py")) for name in FOLDERS}


def count(paths: object) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)  # type: ignore[attr-defined]


def public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


if __name__ == "__main__":
    for title, found in (("", interfaces()), ("flat files", flat_files()), ("lines", lines())):
        print(title)
        for name, number in found.items():
            print(f"{number:8,}  {name}")
