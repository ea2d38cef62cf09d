"""Writes docs/errors/README.md: the codes of errors by family, from the pages beside it.

python tests/make_errors.py
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import paceline
from paceline.commands.pages import files, read

INDEX = Path(paceline.__file__).parent / "docs" / "errors" / "README.md"
_HEAD = """\
# Error codes

Each error of the package has a code, which says the kind of the mistake: `error.code`, and the last line
of what is printed. `paceline explain CODE` prints its page, with causes and cures, and `paceline explain`
this list. A code stays what it is from one version to the next; messages may change.

`python tests/make_errors.py` writes this index.
"""


def index() -> str:
    """The index as it should be."""
    pages = sorted((read(file) for file in files()), key=lambda page: (page.family, page.code))
    parts = [_HEAD]
    for family, members in groupby(pages, key=lambda page: page.family):
        rows = [f"| [`{page.code}`]({page.code}.md) | {page.summary} |" for page in members]
        parts.append("\n".join([f"## {family}\n", "| code | meaning |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
