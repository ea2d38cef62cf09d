"""Writes the cards of docs/recipes/README.md, from the list of recipes and what was measured.

python tests/make_gallery.py
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import paceline
from paceline.recipes import RECIPES

ROOT = Path(paceline.__file__).parent
PAGE = ROOT / "docs" / "recipes" / "README.md"
PICTURES = ROOT / "docs" / "images" / "recipes"
_MEASURED = json.loads((ROOT / "benchmarks" / "results" / "recipes.json").read_text())
_MARKED = r"(?<=<!-- cards -->\n).*(?=<!-- end -->)"
_COLUMNS = 3


def page() -> str:
    """The page as it is to be."""
    cards = "\n".join(_sections())
    return re.sub(_MARKED, lambda _: f"\n{cards}\n", PAGE.read_text(), flags=re.DOTALL)


def _sections() -> Iterator[str]:
    """A table of cards for each section of the site's navigation, under its heading."""
    for heading, names in _groups():
        yield f'## {heading}\n\n<div class="gallery" markdown>\n\n' + "|   " * _COLUMNS + "|"
        yield "|---" * _COLUMNS + "|"
        for first in range(0, len(names), _COLUMNS):
            row = [_card(name) for name in names[first : first + _COLUMNS]]
            yield f"| {' | '.join(row)} |" + " |" * (_COLUMNS - len(row))
        yield "\n</div>\n"


def _groups() -> Iterator[tuple[str, list[str]]]:
    """The recipes in the order of the site's navigation, by its sections; first those that are in none."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    (entries,) = (part["Recipes"] for part in nav if "Recipes" in part)
    before = []
    for entry in entries:
        ((heading, found),) = entry.items()
        if isinstance(found, list):
            yield heading, before + [Path(path).stem for one in found for path in one.values()]
            before = []
        elif found != "recipes/README.md":
            before.append(Path(found).stem)


def _card(name: str) -> str:
    """A cell: picture, name, one line, figure, seconds, command, source."""
    recipe, found = RECIPES[name], _MEASURED[name]
    figure = recipe.figure
    kind = "image.jpg" if (PICTURES / f"{name}-image.jpg").exists() else "card.png"
    lines = [
        f"[![{name}](../images/recipes/{name}-{kind})]({name}.md)",
        f"**[{name}]({name}.md)**",
        recipe.about,
        f"{found['metric']} **{found['mean']:.4g}** in {figure.seconds} s",
        f"`{_command(name)}`",
        f"[source](../../recipes/{recipe.module}.py)",
    ]
    return "<br>".join(lines)


def _command(name: str) -> str:
    figure = RECIPES[name].figure
    words = ["paceline fit", name]
    words += [f"preset={figure.preset}"] if figure.preset else []
    words += [f"teacher=runs/{figure.teacher}/1"] if figure.teacher else []
    return " ".join(words)


if __name__ == "__main__":
    PAGE.write_text(page())
