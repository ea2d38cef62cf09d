"""How a checkpoint comes to be there whole or not at all, and how it goes.

A folder is written under another name beside its target, synced, given its manifest last, and renamed.
Where the target exists, that is renamed first, to ``step-00000500.replaced``, and deleted afterwards.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ....common.retries import retried
from . import format as files

_STAGING = ".staging-"


def staging_of(target: Path) -> Path:
    """Where a folder is written before it appears: beside it, so that a rename suffices."""
    return target.parent / f"{_STAGING}{target.name}"


def begin(target: Path) -> None:
    """Make an empty staging folder for ``target``."""
    staging = staging_of(target)

    def make() -> None:
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            for folder in target.absolute().parents[1:4]:  # the run's, its name's, and where runs are
                with suppress(PermissionError):
                    sync_folder(folder)
        remove(staging)
        staging.mkdir()

    retried(make)


def commit(target: Path, manifest: Any, entries: dict[str, Any] | None = None) -> None:
    """Seal the staging folder and make it ``target``; one that exists is deleted when that is done.

    Args:
        target: The folder to be, whose staging folder (``staging_of(target)``) is complete.
        manifest: Plain JSON data that becomes part of the manifest.
        entries: What ``entry_of`` gave for files that are in the folder; None: for none yet.
    """
    staging = staging_of(target)
    seal(staging, manifest, entries or {})
    replaced = target.with_name(target.name + files.REPLACED)
    replaces = retried(target.exists)
    if replaces:
        remove(replaced)
        _rename(target, replaced)
    try:
        _rename(staging, target)
    except OSError:
        recover(target.parent)
        raise
    sync_folder(target.parent)
    if replaces:
        delete(replaced)


def _rename(source: Path, target: Path) -> None:
    def rename() -> None:
        if source.exists() or not target.exists():  # an attempt that failed may have taken effect
            os.rename(source, target)

    retried(rename)


def seal(folder: Path, manifest: Any, entries: dict[str, Any]) -> None:
    """Write the manifest over the files that are in ``folder``, and sync both."""
    here = {p.name for p in files.listed(folder) if p.name != files.MANIFEST}
    names = sorted(here | entries.keys())  # other machines may have written some into a folder of theirs
    listing = {name: entries.get(name) or retried(partial(files.entry_of, folder / name)) for name in names}
    content = {"format": files.FORMAT, **manifest, "block": files.BLOCK, "files": listing}
    write_synced(folder / files.MANIFEST, files.sealed(content))
    sync_folder(folder)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""

    def write() -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    retried(write)


def save_tensors(tensors: dict[str, Tensor], path: Path, about: dict[str, str] | None = None) -> None:
    """Write a safetensors file, with the permissions of its folder: by itself, only its owner can read it.

    Args:
        tensors: By name, on the CPU and contiguous.
        path: The file.
        about: Its metadata.
    """
    from safetensors.torch import save_file

    save_file(tensors, str(path), metadata=about)
    path.chmod(path.parent.stat().st_mode & 0o666)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk."""

    def sync() -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    retried(sync)


def delete(folder: Path) -> None:
    """Delete a checkpoint, its manifest first: one that is half deleted is never taken for whole."""
    if not folder.is_symlink():
        (folder / files.MANIFEST).unlink(missing_ok=True)
    remove(folder)


def remove(path: Path) -> None:
    """Remove a file, or a folder and all that is in it; of a link only the link, not what it leads to."""
    if path.is_symlink() or not retried(path.is_dir):
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def recover(folder: Path) -> None:
    """Give checkpoints their names back that a killed process had renamed, and not replaced yet."""
    for path in files.finished(folder, files.STEP) + files.finished(folder, files.WEIGHTS):
        if path.name.endswith(files.REPLACED):
            remove(target := path.with_name(path.name.removesuffix(files.REPLACED)))
            os.rename(path, target)


def sweep(folder: Path) -> None:
    """Remove what an earlier process left half-written, half-deleted or replaced."""
    recover(folder)
    for path in _junk(folder):
        remove(path)


def has_junk(folder: Path) -> bool:
    """Whether there is anything for ``sweep``."""
    return bool(_junk(folder))


def _junk(folder: Path) -> list[Path]:
    def is_junk(path: Path) -> bool:
        half_deleted = files.is_named(path.name, files.STEP, files.WEIGHTS) and not files.is_checkpoint(
            path
        )
        replaced = path.name.endswith(files.REPLACED) and path not in present
        return path.name.startswith(_STAGING) or half_deleted or replaced

    present = files.finished(folder, files.STEP) + files.finished(folder, files.WEIGHTS)
    return list(filter(is_junk, files.listed(folder))) if retried(folder.is_dir) else []
