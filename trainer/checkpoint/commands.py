"""``paceline checkpoint ls | verify | show | consolidate`` and ``paceline export``: text in, text out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import PacelineError
from ..utils.paths import as_path
from ..utils.text import shown_size
from . import format as files
from .integrity import verify
from .locate import find_checkpoint
from .pointers import read_pointer
from .reading import hparams_of, read_manifest


def list_checkpoints(path: Path) -> Iterator[str]:
    """A line for each checkpoint under ``path``: a checkpoint, a run, or any folder above runs.

    Raises:
        PacelineError: where there is none.
    """
    rows = [("checkpoint", "step", "epoch", "size", "written by", "at", "")]
    for folder in _checkpoints(path):
        try:
            manifest = read_manifest(folder)
        except PacelineError as error:
            rows.append((str(folder), "", "", "", "", "", str(error).splitlines()[0]))
            continue
        counters, world = manifest["counters"], manifest["world"]
        by = f"{world['strategy']} x {world['size']}"
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime((folder / files.MANIFEST).stat().st_mtime))
        size = shown_size(sum(entry["bytes"] for entry in manifest["files"].values()))
        marks = [name for name in _pointers(folder.parent) if _points_to(folder.parent / name, folder)]
        if manifest["weights_only"]:
            marks.append("weights only")
        step, epoch = str(counters["global_step"]), str(counters["epoch"])
        rows.append((str(folder), step, epoch, size, by, at, ", ".join(marks)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def verify_checkpoints(path: Path) -> Iterator[tuple[str, bool]]:
    """A line for each checkpoint under ``path``, and whether it is as it was written: nothing more in it.

    Raises:
        PacelineError: where there is none.
    """
    for folder in _checkpoints(path):
        try:
            unlisted = files.unlisted(folder, verify(folder))
        except PacelineError as error:
            yield f"{folder}: DAMAGED: {' '.join(str(error).split())}", False
        else:
            more = f", but its manifest does not list: {', '.join(unlisted)}" if unlisted else ""
            yield f"{folder}: whole{more}", not unlisted


def show_checkpoint(path: Path) -> Iterator[str]:
    """What is in a checkpoint (of a run: the newest): where the run was, its values, its tensors.

    Raises:
        CheckpointError: when its manifest is damaged.
    """
    from .weights import stored_shapes

    found = _checkpoints(path)
    folder = next((f for f in reversed(found) if f.name.startswith(files.STEP)), found[-1])
    manifest = read_manifest(folder)
    counters, world, module = manifest["counters"], manifest["world"], manifest["module"]
    yield f"{folder}"
    yield f"  format      {manifest['format']}{', weights only' if manifest['weights_only'] else ''}"
    hparams = hparams_of(folder, manifest)
    yield f"  module      {module['class']}({', '.join(f'{k}={v!r}' for k, v in hparams.items())})"
    ranks = f"{world['size']} rank{'s' if world['size'] > 1 else ''}"
    yield f"  written by  {world['strategy']}, {ranks}, precision {manifest['precision']}"
    yield f"  run         {_pairs(counters)}"
    yield f"  data        {_pairs(manifest['data'])}"
    yield f"  metrics     {_pairs(manifest['metrics'])}"
    for name, entry in manifest["files"].items():
        yield f"  file        {name}  {shown_size(entry['bytes'])}"
    for name, shape in stored_shapes(folder, manifest).items():
        yield f"  tensor      {name}  {shape}"


def one_checkpoint(path: Path) -> Path:
    """The checkpoint that ``path`` is, or the best, else latest, of the run that it is."""
    return find_checkpoint(path, weights=True)


def _checkpoints(path: Path) -> list[Path]:
    """Oldest first within a run, runs by their numbers."""
    path = as_path(path, "checkpoint")
    if files.is_checkpoint(path):
        return [path]
    parents = {p.parent.parent for p in path.rglob(f"*/{files.MANIFEST}")} if path.is_dir() else set()
    found = [
        folder
        for parent in sorted(parents, key=_by_number)
        for kind in (files.STEP, files.WEIGHTS)
        for folder in files.finished(parent, kind)
    ]
    if not found:
        raise PacelineError("there is no checkpoint at this path", where=str(path))
    return found


def _by_number(path: Path) -> list[tuple[int, str]]:
    return [(int(part) if part.isdigit() else 0, part) for part in path.parts]


def _pointers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file() and p.name.startswith(("latest", "best")))


def _points_to(pointer: Path, folder: Path) -> bool:
    return read_pointer(pointer) == folder


def _pairs(values: dict[str, Any]) -> str:
    shown = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in values.items()}
    return "  ".join(f"{name} {value}" for name, value in shown.items()) or "none"
