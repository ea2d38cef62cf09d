"""What a tracker was sent of a run, kept for a resume."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32


class SentRows:
    """The tracker's id of a run and the last step that was sent, in a file that survives a kill.

    Args:
        path: The file; None keeps nothing. One that cannot be read is as good as none.

    Attributes:
        run_id: None where the run is new.

    Example:
        >>> sent = SentRows(Path("tracker.json"))
        >>> sent.begin("a1b2")
        >>> sent.add(50, ["train/loss"])
        >>> resumed = SentRows(Path("tracker.json"))
        >>> resumed.has(50, ["train/loss"]), resumed.has(50, ["val/loss"])
        (True, False)
    """

    def __init__(self, path: Path | None) -> None:
        self.run_id: str | None = None
        self._path = path
        self._step, self._marks = -1, list[int]()
        if path is not None and path.is_file():
            try:
                kept = json.loads(path.read_text(encoding="utf-8"))
                self.run_id, self._step, self._marks = str(kept["run_id"]), int(kept["step"]), kept["marks"]
            except (ValueError, KeyError, TypeError):
                self.run_id = None
        self._known_step, self._known_marks = self._step, set(self._marks)

    def has(self, step: int, names: Iterable[str]) -> bool:
        """Whether values of these names were sent at this step, before this session."""
        if step == self._known_step:
            return _mark(names) in self._known_marks
        return step < self._known_step

    def begin(self, run_id: str) -> None:
        """The run is open under this id."""
        self.run_id = run_id
        self._write()

    def add(self, step: int, names: Iterable[str]) -> None:
        """Values of these names are sent at a step."""
        if step != self._step:
            self._step = step
            self._marks.clear()
        self._marks.append(_mark(names))
        self._write()

    def take_back(self) -> None:
        """What was added last was not sent."""
        self._marks.pop()
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        text = json.dumps({"run_id": self.run_id, "step": self._step, "marks": self._marks})
        staging = self._path.with_suffix(".part")
        staging.write_text(text, encoding="utf-8")
        os.replace(staging, self._path)


def _mark(names: Iterable[str]) -> int:
    return crc32("\0".join(sorted(names)).encode())
