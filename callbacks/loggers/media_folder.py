"""Images, histograms, tables and texts as files of the run folder."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .media import Histogram, Image, Media, Table, Text

_STEP = re.compile(r"step-(\d+)\.(png|csv|txt|json)")


class MediaFolder:
    """``media/<name>/step-<n>.png``, ``.csv``, ``.txt`` or, for a histogram, ``.json``.

    Args:
        path: The folder; made when the first file is written.

    Example:
        >>> folder = MediaFolder(Path("media"))
        >>> path = folder.write(4, "val/words", Table(("word", "count"), (("be", 2), ("or", 1))))
        >>> path.read_text().splitlines()
        ['word,count', 'be,2', 'or,1']
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_until(self, step: int) -> None:
        """Delete the files after ``step``, which a resumed run writes again."""
        for file in self.path.rglob("step-*"):
            found = _STEP.fullmatch(file.name)
            if found and int(found[1]) > step:
                file.unlink()

    def write(self, step: int, name: str, media: Media) -> Path:
        """The file that was written. In a name all but letters, digits and ``_.=-/`` becomes ``_``."""
        folder = self.path.joinpath(*(_safe(part) for part in name.split("/") if part))
        folder.mkdir(parents=True, exist_ok=True)
        ending, write = _WRITERS[type(media)]
        path = folder / f"step-{step:08d}.{ending}"
        write(path, media)
        return path


def _safe(part: str) -> str:
    return re.sub(r"[^\w.=-]", "_", part).lstrip(".") or "_"


def _write_image(path: Path, image: Image) -> None:
    path.write_bytes(image.png())


def _write_table(path: Path, table: Table) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows(table.rows)


def _write_text(path: Path, text: Text) -> None:
    path.write_text(text.text, encoding="utf-8")


def _write_histogram(path: Path, histogram: Histogram) -> None:
    path.write_text(json.dumps(asdict(histogram)) + "\n", encoding="utf-8")


_WRITERS: dict[type, tuple[str, Callable[[Path, Any], None]]] = {
    Image: ("png", _write_image),
    Table: ("csv", _write_table),
    Text: ("txt", _write_text),
    Histogram: ("json", _write_histogram),
}
