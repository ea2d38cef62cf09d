"""``paceline explain`` and ``paceline skills``: pages that the package carries, of docs/."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..errors import PacelineError, nearest
from .output import JSON, print_json, print_table

_PAGES = Path(__file__).parent.parent / "docs"
_ERRORS = _PAGES / "errors"
SKILLS = _PAGES / "skills"
_INDEX = "README.md"
_LINK = re.compile(r"\[([^]]+)\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Page:
    """What a page in docs/errors says.

    Args:
        code: Its name.
        family: The last line of the page names it.
        summary: The first sentence.
        text: All of it, as plain text.
    """

    code: str
    family: str
    summary: str
    text: str


def explain(
    code: Annotated[str, typer.Argument(help="A code, as an error names it; none lists all.")] = "",
    as_json: JSON = False,
) -> None:
    """Say what the code of an error means, why it happens and how to mend it; or list all codes."""
    if code:
        page = read(_named("code", code, files(), fix="paceline explain lists all codes"))
        if as_json:
            print_json(asdict(page))
        else:
            typer.echo(page.text)
        return
    pages = [read(file) for file in files()]
    if as_json:
        print_json([{k: v for k, v in asdict(page).items() if k != "text"} for page in pages])
        return
    width = max(len(page.code) for page in pages)
    for family in sorted({page.family for page in pages}):
        typer.echo(f"{family}")
        for page in (page for page in pages if page.family == family):
            typer.echo(f"  {page.code:{width}}  {page.summary}")


def skills(
    name: Annotated[str | None, typer.Argument(help="Print this one.", show_default=False)] = None,
    as_json: JSON = False,
) -> None:
    """List what coding agents can read about working with this package, or print one of them.

    A skill is Markdown after a name and a description: `paceline skills NAME > SKILL.md`.
    """
    found = sorted(SKILLS.glob("*.md"))
    if name is None:
        rows = [(file.stem, _description(file.read_text(encoding="utf-8"))) for file in found]
        if as_json:
            print_json([{"name": one, "description": about} for one, about in rows])
        else:
            print_table(("skill", "what it is for"), rows)
        return
    file = _named("skill", name, found, allowed=", ".join(file.stem for file in found))
    text = file.read_text(encoding="utf-8")
    if as_json:
        print_json({"name": file.stem, "description": _description(text), "text": text})
    else:
        typer.echo(text, nl=False)


def files() -> list[Path]:
    """The pages, one for each code."""
    return sorted(file for file in _ERRORS.glob("*.md") if file.name != _INDEX)


def read(file: Path) -> Page:
    """A page as plain text: links are their text, and code is indented."""
    title, summary, *rest = file.read_text(encoding="utf-8").split("\n\n")
    family = rest[-1].partition("Family: ")[2].strip().rstrip(".")
    lines, inside = list[str](), False
    for line in "\n\n".join([title, summary, *rest[:-1]]).splitlines():
        if line.startswith("```"):
            inside = not inside
        else:
            lines.append(f"    {line}".rstrip() if inside else _LINK.sub(_shown, line.lstrip("# ")))
    return Page(file.stem, _LINK.sub(_shown, family), " ".join(summary.split()), "\n".join(lines).rstrip())


def _shown(link: re.Match[str]) -> str:
    text, target = link.groups()
    return f"{text} ({target})" if "://" in target else text


def _named(what: str, given: str, found: list[Path], **answer: str) -> Path:
    """The page that a name means."""
    name = given.strip().lower().replace("_", "-")
    known = {file.stem: file for file in found}
    if name not in known:
        raise PacelineError(
            f"there is no {what} {given!r}", code="unknown-choice", meant=nearest(name, known), **answer
        )
    return known[name]


def _description(text: str) -> str:
    """The description of a skill's front matter."""
    (line,) = (one for one in text.splitlines()[:4] if one.startswith("description: "))
    return line.removeprefix("description: ")
