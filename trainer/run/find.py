"""The runs that a path means: a run folder, or any folder above."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...errors import PacelineError, nearest
from ..checkpoint.files.remote_run import local_path
from .run import Run


def one_run(path: str | Path) -> Run:
    """The run at a path, or the only one below it.

    Raises:
        PacelineError: for a path without a run, and for one with several, naming them.
    """
    found = find_runs([path])
    if len(found) > 1:
        raise PacelineError(
            "there are several runs below this path",
            code="run-not-found",
            where=str(path),
            allowed=", ".join(str(run.folder) for run in found[:10]),
        )
    return found[0]


def find_runs(paths: Sequence[str | Path]) -> list[Run]:
    """The runs that are at these paths or below them, each once; those of a name by their numbers.

    Raises:
        PacelineError: for a path without a run, naming the nearest one that exists.
    """
    found: dict[Path, Run] = {}
    for given in paths:
        path = local_path(given, "a run")
        if not (path / "config.yaml").is_file():
            below = os.walk(path)  # passes over what vanishes, as folders of checkpoints do
            inside = sorted((Path(at) for at, _, names in below if "config.yaml" in names), key=_by_number)
            folders = [p for p in inside if (p / "env.json").is_file() or (p / "metrics.jsonl").is_file()]
        else:
            folders = [path]
        if not folders:
            raise _no_run(path)
        found |= {folder.resolve(): Run(folder) for folder in folders if folder.resolve() not in found}
    return list(found.values())


def _no_run(path: Path) -> PacelineError:
    above = path.parent
    beside = [p.name for p in above.iterdir() if p.is_dir()] if above.is_dir() else []
    near = None if path.exists() else nearest(path.name, beside)
    return PacelineError(
        "there is no run at this path or below it",
        code="run-not-found",
        where=str(path),
        meant=str(above / near) if near else None,
        fix="give the folder of a run, runs/<name>/<n>, or a folder above",
    )


def _by_number(path: Path) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else 0, part) for part in path.parts]
