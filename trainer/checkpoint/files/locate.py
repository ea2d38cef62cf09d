"""Which checkpoint a path means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....common.ray_experiment import POINTER
from ....errors import PacelineError, nearest
from . import format as files
from .pointers import read_pointer
from .remote_run import local_path


def find_checkpoint(path: Any, weights: bool = False, words: Sequence[str] = ()) -> Path:
    """The checkpoint folder that ``path`` is, or the best, else latest, of the run folder it is.

    Args:
        path: A checkpoint folder, a run folder, or a folder that Ray Train keeps as a checkpoint.
        weights: Accept a checkpoint of weights only, too.
        words: What may be given in the place of a path.

    Raises:
        PacelineError: when it is neither.
    """
    folder = local_path(path, "a checkpoint")
    if (folder / POINTER).is_file():
        named = json.loads((folder / POINTER).read_text())["checkpoint"]
        if named is not None:
            return find_checkpoint(named, weights)
    if files.is_checkpoint(folder):
        return folder
    if (folder / "config.yaml").is_file():
        found = _best_of(folder / "checkpoints", weights)
        if found is not None:
            return found
    raise PacelineError(
        "there is no checkpoint at this path"
        + ("" if folder.exists() else ", and nothing else: it does not exist"),
        code="checkpoint-not-found",
        where=str(folder),
        allowed="".join(f"{word!r}, " for word in words)
        + "a folder with manifest.json, or a run folder with checkpoints",
        meant=None if folder.exists() else nearest(str(path), words),
    )


def _best_of(checkpoints: Path, weights: bool) -> Path | None:
    best = read_pointer(checkpoints / "best")
    if best is not None and (weights or not best.name.startswith(files.WEIGHTS)):
        return best
    kinds = (files.STEP, files.WEIGHTS) if weights else (files.STEP,)
    return next((found[-1] for kind in kinds if (found := files.finished(checkpoints, kind))), None)
