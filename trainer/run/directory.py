"""The folder of a run: ``runs/<name>/<n>/``, never the same one twice."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ...errors import PacelineError
from ...strategies.launch.job_notes import write_output_to
from ...strategies.launch.launcher import why_not_relaunch


def make_run_folder(run_dir: str | Path, name: str) -> Path:
    """A new ``<run_dir>/<name>/<n>``, n one above the highest there.

    Raises:
        PacelineError: when nothing can be written there.
    """
    parent = Path(run_dir) / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        number = max((n for n, _ in numbered(parent)), default=0)
        while True:
            number += 1
            folder = parent / str(number)
            try:
                folder.mkdir()
            except FileExistsError:  # another process took the number
                continue
            return folder
    except OSError as error:
        raise PacelineError(
            "the run folder cannot be written",
            where=str(parent),
            got=str(error),
            fix="give Trainer(run_dir=...) a folder that can be",
        ) from None


def numbered(parent: Path) -> list[tuple[int, Path]]:
    """The runs under a name, oldest first."""
    if not parent.is_dir():
        return []
    return sorted((int(p.name), p) for p in parent.iterdir() if p.name.isdigit() and p.is_dir())


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """config.yaml: the resolved configuration of the run."""
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, encoding="utf-8")


def write_environment(folder: Path, more: dict[str, Any]) -> None:
    """env.json: what the run ran on, and ``more``."""
    import numpy
    import torch

    environment = {
        "command": sys.argv,
        "program": [] if why_not_relaunch() else sys.orig_argv[1:],
        "folder": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": str(torch.accelerator.current_accelerator() or "none"),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    environment |= more
    (folder / "env.json").write_text(json.dumps(environment, indent=1) + "\n", encoding="utf-8")


class RunLog:
    """Lines for the console and log.txt. Lines said before there is a folder are kept for it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._kept: list[str] = []

    def open(self, folder: Path | None, rank: int = 0) -> None:
        """Write to this folder's log from now on; None: to the console only.

        Rank 0 has log.txt; another rank has a log of its own, with everything it prints.
        """
        self._path = None
        if folder is not None:
            self._path = folder / (f"log-rank-{rank}.txt" if rank else "log.txt")
            if rank:
                write_output_to(self._path)
        kept, self._kept = self._kept, []
        for line in kept:
            self._write(line)

    def say(self, text: str, *, console: bool = True) -> None:
        """Print a line above a progress bar, if there is one, and log it."""
        if console:
            bars = sys.modules.get("tqdm")
            if bars is not None:
                bars.tqdm.write(text, file=sys.stdout)
            else:
                print(text)
            sys.stdout.flush()
        self._write(text)

    def _write(self, text: str) -> None:
        if self._path is None:
            self._kept.append(text)
            return
        stamp = time.strftime("%H:%M:%S")
        # A full disk is no reason to end: what matters more says so itself.
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{stamp} {line}\n" for line in text.splitlines()))
