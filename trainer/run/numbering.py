"""The runs of a name are numbered: ``<run_dir>/<name>/<n>``, never the same number twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ...common.remote_paths import url_of
from ..checkpoint.files.remote_run import RemoteRun, numbered_runs
from ..storage.locked import locked
from ..utils.paths import writing

_ELSEWHERE = "give Trainer(run_dir=...) another folder"


def make_run_folder(runs: Path, fill: Callable[[Path], None]) -> Path:
    """A new ``<runs>/<n>``, n one above the highest there.

    Args:
        runs: ``<run_dir>/<name>``.
        fill: Writes the first files of a run, config.yaml among them, into a folder.

    Raises:
        PacelineError: when nothing can be written there.
    """
    if url_of(runs) is not None:
        with locked(runs):
            return _remote_folder(runs, fill)
    with writing("the run folder", runs, _ELSEWHERE):
        runs.mkdir(parents=True, exist_ok=True)
        number = max((n for n, _ in numbered(runs)), default=0)
        while True:
            number += 1
            folder = runs / str(number)
            try:
                folder.mkdir()
            except FileExistsError:  # another process took the number
                continue
            break
    try:
        with writing("the run folder", folder, _ELSEWHERE):
            fill(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # half of its files make no run
        raise
    return folder


def _remote_folder(runs: Path, fill: Callable[[Path], None]) -> Path:
    """That of a number which is free in the object store: what is here of it is no run there."""
    number = next((int(run.name) for run in numbered_runs(runs)), 0)
    while True:
        number += 1
        folder = runs / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        fill(folder)
        remote = RemoteRun.of(folder)
        if remote is not None and remote.claim():
            remote.send_logs()
            return folder


def numbered(parent: Path) -> list[tuple[int, Path]]:
    """The runs under a name, oldest first."""
    if not parent.is_dir():
        return []
    return sorted((int(p.name), p) for p in parent.iterdir() if p.name.isdecimal() and p.is_dir())


def runs_of_name(runs: Path) -> list[Path]:
    """The runs under a name, newest first; of an object store, those that it has."""
    return [path for _, path in reversed(numbered(runs))] if url_of(runs) is None else numbered_runs(runs)
