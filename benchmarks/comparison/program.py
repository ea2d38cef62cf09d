"""The program of a trainer: run in its own processes, with a deadline, and what it recorded read."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = {
    "paceline": "with_paceline.py",
    "lightning": "with_lightning.py",
    "accelerate": "with_accelerate.py",
    "transformers": "with_transformers.py",
    "by_hand": "by_hand.py",
}
PRINTED = "printed.txt"
DEADLINE = 240
_NO_MESSAGE = r"Traceback|[EW]\d{4} |\s+(?:File |raise |\^)"  # lines of torchrun and of other ranks
_ERROR = rf"^([\w.]*(?:Error|Exception)\b(?:: .*|$)(?:\n(?!{_NO_MESSAGE}).+)*)"
Found = dict[str, Any]


@dataclasses.dataclass
class Ended:
    """A run that has ended: its exit code (None: it had to be ended), seconds (after a signal, if it was
    sent one), and what it recorded and printed."""

    code: int | None
    seconds: float
    records: list[Found]
    printed: str

    @property
    def steps(self) -> list[list[int]]:
        """The samples of each step that all ranks began, of all ranks together."""
        ranks = sorted({one["rank"] for one in self.records})
        batches = [
            [r["batch"] for r in self.records if r["rank"] == rank and "batch" in r] for rank in ranks
        ]
        return [sorted(index for batch in step for index in batch) for step in zip(*batches, strict=False)]

    @property
    def updates(self) -> int:
        """How many updates rank 0 made."""
        return sum("lr" in one and one["rank"] == 0 for one in self.records)

    @property
    def said(self) -> str:
        """The error that was printed last, as one line, without what torchrun says of it."""
        printed = re.sub(r"^\[rank\d+\]: ?", "", self.printed, flags=re.MULTILINE).partition(
            "ChildFailedError"
        )[0]
        found = re.findall(_ERROR, printed, flags=re.MULTILINE)
        return " ".join(found[-1].split())[:300] if found else ""


class Program:
    """The program of one trainer: with what all rows need, and the lines marked for this row."""

    def __init__(self, trainer: str, folder: Path, row: str = "") -> None:
        self.trainer, self.folder = trainer, folder
        self.file = HERE / PROGRAMS[trainer]
        lines = self.file.read_text().splitlines(keepends=True)
        marks = [line.partition("# own: ")[2].strip() for line in lines]
        mine = [row in mark.split(", ") if mark else None for mark in marks]
        self.source = "".join(line for line, of_row in zip(lines, mine, strict=True) if of_row is not False)
        self.own_lines = mine.count(True)

    def __call__(
        self,
        arguments: str,
        name: str,
        ranks: int = 1,
        until: Callable[[Path, Ended], bool] | None = None,
        by: signal.Signals = signal.SIGTERM,
        deadline: float = DEADLINE,
    ) -> Ended:
        """Run it in the folder ``name``, several ranks under torchrun; send it a signal once ``until``."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        records = folder / "records.jsonl"
        before = len(read_records(records))
        file = folder / self.file.name
        file.write_text(self.source)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *(launcher if ranks > 1 else []), str(file), *arguments.split()]
        token = uuid.uuid4().hex
        environment = os.environ | {
            "COMPARISON": token,
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        }
        begun = time.monotonic()
        with (folder / PRINTED).open("w") as printed:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=printed, stderr=subprocess.STDOUT
            )
            code = None
            try:
                while code is None and time.monotonic() - begun < deadline:
                    time.sleep(0.005 if until else 0.05)
                    code = process.poll()
                    if until and until(folder, Ended(None, 0.0, read_records(records)[before:], "")):
                        process.send_signal(by)
                        until, begun = None, time.monotonic()
            finally:
                seconds = time.monotonic() - begun
                _end_all(token)
                process.wait()
            if until and code is None:
                raise TimeoutError(f"{self.trainer} did not reach the place where it was to get a signal")
        return Ended(code, round(seconds, 1), read_records(records)[before:], read_printed(folder))

    def weights(self, name: str) -> Any:
        """Those at the end of the run in that folder; None without an end."""
        import torch

        file = self.folder / name / "final.pt"
        return torch.load(file) if file.exists() else None

    def difference(self, name: str, other: str) -> float | None:
        """The largest one between the weights at the ends of two runs."""
        one, two = self.weights(name), self.weights(other)
        if one is None or two is None:
            return None
        return max(float((one[key] - two[key]).abs().max()) for key in one)


def read_printed(folder: Path) -> str:
    """The end of what a program has printed there, without the folder's path."""
    return (folder / PRINTED).read_text()[-20000:].replace(f"{folder}/", "")


def read_records(file: Path) -> list[Found]:
    """The complete lines of a file of records."""
    if not file.exists():
        return []
    complete = file.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in complete.splitlines()]


def _end_all(token: str) -> None:
    """End each process that this run started, those in sessions of their own too."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"COMPARISON={token}".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue
