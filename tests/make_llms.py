"""Writes docs/llms.txt (llmstxt.org): what a language model needs to write programs for this package.

It is put together from the skills, the API reference, the table of commands and the site's navigation.

python tests/make_llms.py
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline
from paceline.callbacks import Callback

ROOT = Path(paceline.__file__).parent
FILE = ROOT / "docs" / "llms.txt"
_HEAD = """# paceline

> A trainer for PyTorch: the same numbers on one device or many, at the speed of the loop you would
> have written, and never a lost step. A `TrainModule` has the steps, a `Trainer` the loop.

Python 3.11 or later, torch 2.9 to 2.15. Everything public is imported from `paceline`, and from
`paceline.callbacks`, `.schedules`, `.strategies`, `.optimizers`, `.parameter_groups`, `.tools`, `.config`.
"""
_IN_FULL = ("port-a-program", "read-a-failed-run", "compare-two-runs")
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_ENTRY = re.compile(r"^###? ([\w.]+)\n\n(?:```py\n(.+)\n```\n\n)?((?!```)[^|\n].*)$", re.MULTILINE)
_WITH_METHODS = ("trainer", "module", "data", "runs", "trainer_in_hooks")
_PAGES = {
    "`from paceline import Trainer, TrainModule, ...`": ("trainer", "module", "data", "runs"),
    "What callbacks and modules read and call during a run: `trainer`": ("trainer_in_hooks",),
    "`from paceline.callbacks import ...`": ("callbacks", "callbacks_watching", "callbacks_output"),
    "`from paceline.strategies import ...`": ("strategies",),
    "`from paceline.schedules import ...`": ("schedules",),
    "`paceline.optimizers`, `paceline.parameter_groups`": ("optimizers", "parameter_groups"),
    "`from paceline.tools import ...`": ("tools",),
}


def text() -> str:
    """The text of docs/llms.txt; headings of the second level are for links, as its readers expect."""
    parts = [_HEAD]
    parts += [_without_headings(_body(ROOT / "docs" / "skills" / f"{name}.md")) for name in _IN_FULL]
    parts += ["**Arguments of `Trainer`, all by name**\n", *_arguments()]
    parts += ["\n**Hooks of `Callback`, and of a module; trailing arguments may be omitted**\n", *_hooks()]
    for title, pages in _PAGES.items():
        parts += [f"\n**{title}**\n", *(entry for page in pages for entry in _entries(page))]
    parts += ["\n**Commands**\n", _commands()]
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    return "\n".join([*parts, *_links(nav)]).rstrip() + "\n"


def _body(skill: Path) -> str:
    """A skill without its front matter."""
    return skill.read_text().split("---\n", 2)[2].strip() + "\n"


def _without_headings(markdown: str) -> str:
    code = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    code[::2] = [re.sub(r"^#+ (.+)$", r"**\1**", part, flags=re.MULTILINE) for part in code[::2]]
    return "".join(code)


def _arguments() -> Iterator[str]:
    table = (ROOT / "docs" / "api" / "trainer.md").read_text().split("| argument | default | meaning |")[1]
    row = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", re.MULTILINE)
    for name, default, meaning in row.findall(table.split("\n\n")[0]):
        yield f"- `{name}` ({default}): {meaning}"


def _hooks() -> Iterator[str]:
    for name in sorted(name for name in dir(Callback) if name.startswith("on_")):
        hook = getattr(Callback, name)
        arguments = ", ".join(p for p in inspect.signature(hook).parameters if p != "self")
        about = (inspect.getdoc(hook) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
        yield f"- `{name}({arguments})`: {about}"


def _entries(page: str) -> Iterator[str]:
    """Of a page of the API reference, each name with its arguments and its first paragraph."""
    for name, arguments, about in _ENTRY.findall((ROOT / "docs" / "api" / f"{page}.md").read_text()):
        if name != "Trainer" and ("." not in name or page in _WITH_METHODS):  # its arguments have a list
            called = (
                f"{name.rpartition('.')[0]}.{arguments}" if "." in name and arguments else arguments or name
            )
            yield f"- `{called}`: {_LINK.sub(lambda link: link[1], about)}"


def _commands() -> str:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    table = page.split("| command | what it does |\n|---|---|\n")[1]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table.split("\n\n")[0], re.MULTILINE)
    return "\n".join(f"- {name}: {_LINK.sub(lambda link: link[1], about)}" for name, about in rows)


def _links(nav: list[dict[str, Any]], title: str = "") -> Iterator[str]:
    """A list of links for each part of the navigation."""
    pages = [(name, page) for entry in nav for name, page in entry.items() if isinstance(page, str)]
    if title:
        yield f"\n## {title}\n"
        yield from (f"- [{name}]({page})" for name, page in pages)
    for entry in nav:
        for name, inner in entry.items():
            if not isinstance(inner, str):
                yield from _links(inner, f"{title}: {name}" if title else name)


if __name__ == "__main__":
    FILE.write_text(text())
