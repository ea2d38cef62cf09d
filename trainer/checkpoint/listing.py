"""Checkpoints below a path, for the command line: which exist, whether they are whole, what is in one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import PacelineError
from .files import format as files
from .files.integrity import verify
from .files.locate import find_checkpoint
from .files.pointers import read_pointer
from .files.reading import hparams_of, read_manifest
from .files.remote_run import complete, local_path


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint in a list.

    Attributes:
        path: Its folder.
        step: Optimizer steps that were done; None, as what follows, where the manifest is damaged.
        epoch: Epochs that were done.
        bytes: The size of all its files.
        strategy: The name of what wrote it.
        ranks: How many wrote it.
        saved: When, in local time, to the minute.
        marks: ``best``, ``latest``: the pointers to it; ``weights only``: it has no training state.
        problem: Why its manifest cannot be read; "" where it can.
    """

    path: Path
    step: int | None = None
    epoch: int | None = None
    bytes: int | None = None
    strategy: str | None = None
    ranks: int | None = None
    saved: str | None = None
    marks: list[str] = field(default_factory=list)
    problem: str = ""


def list_checkpoints(path: Path) -> Iterator[ListedCheckpoint]:
    """Each checkpoint under ``path``: a checkpoint, a run, or any folder above runs.

    Raises:
        PacelineError: where there is none.
    """
    for folder in find_checkpoints(path):
        try:
            manifest = read_manifest(folder)
        except PacelineError as error:
            yield ListedCheckpoint(folder, problem=str(error).splitlines()[0])
            continue
        counters, world = manifest["counters"], manifest["world"]
        at = time.localtime((folder / files.MANIFEST).stat().st_mtime)
        marks = [name for name in _pointers(folder.parent) if _points_to(folder.parent / name, folder)]
        yield ListedCheckpoint(
            folder,
            step=counters["global_step"],
            epoch=counters["epoch"],
            bytes=bytes_of(manifest),
            strategy=world["strategy"],
            ranks=world["size"],
            saved=time.strftime("%Y-%m-%d %H:%M", at),
            marks=[*marks, *(["weights only"] if manifest["weights_only"] else [])],
        )


def bytes_of(manifest: dict[str, Any]) -> int:
    """The size of a checkpoint's files."""
    return sum(entry["bytes"] for entry in manifest["files"].values())


def problem_of(folder: Path, compared: Callable[[int], object] | None = None) -> str:
    """Why a checkpoint is not as it was written, or has more in it; "" for a whole one.

    Args:
        folder: Its folder.
        compared: Called with the size of each part that was read and compared, in bytes.
    """
    try:
        unlisted = files.unlisted(folder, verify(folder, compared=compared))
    except PacelineError as error:
        return f"DAMAGED: {' '.join(str(error).split())}"
    return f"whole, but its manifest does not list: {', '.join(unlisted)}" if unlisted else ""


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """What is in a checkpoint (of a run: the newest): where the run was, its values, its tensors.

    Raises:
        CheckpointError: when its manifest is damaged.
    """
    from .weights import stored_shapes

    found = find_checkpoints(path)
    folder = next((f for f in reversed(found) if f.name.startswith(files.STEP)), found[-1])
    complete(folder)
    manifest = read_manifest(folder)
    return {
        "path": str(folder),
        "format": manifest["format"],
        "weights_only": manifest["weights_only"],
        "module": manifest["module"]["class"],
        "hparams": dict(hparams_of(folder, manifest)),
        "strategy": manifest["world"]["strategy"],
        "ranks": manifest["world"]["size"],
        "precision": manifest["precision"],
        "run": dict(manifest["counters"]),
        "data": dict(manifest["data"]),
        "metrics": dict(manifest["metrics"]),
        "files": {name: entry["bytes"] for name, entry in manifest["files"].items()},
        "tensors": {name: list(shape) for name, shape in stored_shapes(folder, manifest).items()},
    }


def one_checkpoint(path: Path) -> Path:
    """The checkpoint that ``path`` is, or the best, else latest, of the run that it is."""
    return find_checkpoint(path, weights=True)


def find_checkpoints(path: Path) -> list[Path]:
    """The checkpoints under a path: oldest first within a run, runs by their numbers.

    Raises:
        PacelineError: where there is none.
    """
    path = local_path(path, "checkpoint")
    if files.is_checkpoint(path):
        return [path]
    below = ((Path(at), folders) for at, folders, _ in os.walk(path))  # passes over what vanishes
    parents = {at for at, folders in below if any(files.is_checkpoint(at / one) for one in folders)}
    found = [
        folder
        for parent in sorted(parents, key=_by_number)
        for kind in (files.STEP, files.WEIGHTS)
        for folder in files.finished(parent, kind)
    ]
    if not found:
        raise PacelineError(
            "there is no checkpoint at this path", code="checkpoint-not-found", where=str(path)
        )
    return found


def _by_number(path: Path) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else 0, part) for part in path.parts]


def _pointers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file() and p.name.startswith(("latest", "best")))


def _points_to(pointer: Path, folder: Path) -> bool:
    return read_pointer(pointer) == folder
