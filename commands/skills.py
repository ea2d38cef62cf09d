"""``paceline skills``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.errors import PacelineError, nearest

from .output import JSON, print_json, print_table

FOLDER = Path(__file__).parents[1] / "docs" / "skills"


def skills(
    name: Annotated[str | None, typer.Argument(help="Print this one.", show_default=False)] = None,
    as_json: JSON = False,
) -> None:
    """List what coding agents can read about working with this package, or print one of them.

    A skill is Markdown after a name and a description: `paceline skills NAME > SKILL.md`.
    """
    texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.md"))}
    if name is None:
        rows = [(one, _description(text)) for one, text in texts.items()]
        if as_json:
            print_json([{"name": one, "description": about} for one, about in rows])
        else:
            print_table(("skill", "what it is for"), rows)
    elif name not in texts:
        raise PacelineError(
            "there is no skill of this name",
            got=name,
            allowed=", ".join(texts),
            meant=nearest(name, texts),
        )
    elif as_json:
        print_json({"name": name, "description": _description(texts[name]), "text": texts[name]})
    else:
        typer.echo(texts[name], nl=False)


def _description(text: str) -> str:
    """The description of a skill's front matter."""
    (line,) = (one for one in text.splitlines()[:4] if one.startswith("description: "))
    return line.removeprefix("description: ")
