"""Writes the notebooks of docs/tutorials from the pages of the same names: they cannot differ.

python tests/make_notebooks.py

A block of Python becomes a cell. So does a command of paceline; ``python train.py ddp 2`` becomes the call
``train("ddp", 2)``, and a script without arguments has run when its cell has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline

FOLDER = Path(paceline.__file__).parent / "docs" / "tutorials"
PAGES = ("own-loop", "one-device-to-many")
_BLOCK = r"^```(?:python|sh)\n.*?^```\n"


def notebooks() -> dict[Path, str]:
    """The notebooks as they are to be, without outputs."""
    return {FOLDER / f"{page}.ipynb": _notebook((FOLDER / f"{page}.md").read_text()) for page in PAGES}


def _notebook(page: str) -> str:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cells = [cell | {"id": f"cell-{number}"} for number, cell in enumerate(_cells(page), 1)]
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cells(page: str) -> Iterator[dict[str, Any]]:
    for part in re.split(rf"({_BLOCK})", page, flags=re.DOTALL | re.MULTILINE):
        kind, _, block = part.removesuffix("```\n").partition("\n")
        if kind == "```python":
            text = _without_script(block)
        elif kind == "```sh":
            text = "\n".join(filter(None, map(_call, block.splitlines())))
        else:
            kind, text = "", part.strip()
        if text:
            common = {"metadata": {}, "source": text.splitlines(keepends=True)}
            code = {"cell_type": "code", "execution_count": None, "outputs": []}
            yield common | (code if kind else {"cell_type": "markdown"})


def _without_script(block: str) -> str:
    """A file without its name and what only the command line needs."""
    block, _, _ = re.sub(r"^# .*\.py.*\n", "", block).partition('\n\nif __name__ == "__main__":')
    return block.removeprefix("import sys\n\n").strip()


def _call(command: str) -> str:
    """What a cell does for a command; empty for nothing."""
    if not (script := re.match(r"python (\w+)\.py(.*)", command)):
        return f"!{command}"
    arguments = [word if word.isdigit() else f'"{word}"' for word in script[2].split()]
    return f"{script[1]}({', '.join(arguments)})" if arguments else ""


if __name__ == "__main__":
    for path, text in notebooks().items():
        path.write_text(text)
