"""What pages of the documentation show: blocks of code, programs, what a run printed."""

from __future__ import annotations

import re
from pathlib import Path

AFTER_CODE = tuple(
    f"docs/guides/{name}.md"
    for name in ("checkpoints", "reports", "schedules", "configuration", "fine-tuning")
)
"""Pages whose commands need what their code has left in the folder: both are run together."""


def blocks(page: Path, language: str = "python") -> list[str]:
    """The text of each block of this language, which may be a pattern: ``py(?:thon)?``."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def programs(page: Path) -> dict[str, str]:
    """The blocks that begin with a comment with the name of a file, by that name."""
    found: dict[str, str] = {}
    for block in blocks(page, "py(?:thon)?"):
        if name := re.match(r"# (\S+\.py)\n", block):
            assert name[1] not in found, name[1]
            found[name[1]] = block
    return found


def without_figures(text: str) -> str:
    """Losses differ a little on other machines; speed, memory and the time left everywhere."""
    return re.sub(r"[\d.]+k? samples/s|ETA [\d:]+|\d+\.\d+", "#", text)
