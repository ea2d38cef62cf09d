"""Checkpoint folders on disk: written whole or not at all, verified before they are read.

    step-00000500/
      manifest.json          format, counters, every file's size and checksums, last its own
      state.json             plain data
      model-*.safetensors    optim-*.safetensors

A folder is written under another name beside its target, synced, given its manifest last, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PacelineError

if TYPE_CHECKING:
    from ..strategies.base import Strategy

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
STEP, WEIGHTS = "step-", "weights-"
_STAGING = ".staging-"
_BLOCK = 64 << 20
_CHUNK = 1 << 20
_THREADS = min(8, os.cpu_count() or 1)


class CheckpointError(PacelineError):
    """A checkpoint that is missing, damaged, or could not be written."""


class NewerFormatError(PacelineError):
    """A checkpoint that is whole, and of a format this version does not know."""


# -- writing -----------------------------------------------------------------------------------


def staging_of(target: Path) -> Path:
    """Where a folder is written before it appears: beside it, so that a rename suffices."""
    return target.parent / f"{_STAGING}{target.name}"


def begin(target: Path) -> None:
    """Make an empty staging folder for ``target``."""
    staging = staging_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()


def commit(target: Path, manifest: Any, entries: dict[str, Any] | None = None) -> None:
    """Seal the staging folder and make it ``target``.

    Args:
        manifest: Plain JSON data that becomes part of the manifest.
        entries: What ``entry_of`` gave for files that are in the folder; None: for none yet.
    """
    staging = staging_of(target)
    seal(staging, manifest, entries or {})
    os.rename(staging, target)
    sync_folder(target.parent)


def seal(folder: Path, manifest: Any, entries: dict[str, Any]) -> None:
    """Write the manifest over the files that are in ``folder``, and sync both."""
    names = sorted(p.name for p in folder.iterdir() if p.name != MANIFEST)
    files = {name: entries.get(name) or entry_of(folder / name) for name in names}
    content = {"format": FORMAT, **manifest, "block": _BLOCK, "files": files}
    content["checksum"] = checksum(content)
    write_synced(folder / MANIFEST, json.dumps(content, indent=1).encode())
    sync_folder(folder)


def entry_of(path: Path) -> dict[str, Any]:
    """A file's entry in the manifest: its size, and the CRC-32 of each 64 MiB of it."""
    size = path.stat().st_size
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = list(pool.map(lambda start: _crc(path, start, _BLOCK), range(0, size, _BLOCK)))
    return {"bytes": size, "crc32": sums}


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete(folder: Path) -> None:
    """Delete a checkpoint, its manifest first: one that is half deleted is never taken for whole."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what an earlier process left half-written or half-deleted."""
    if folder.is_dir():
        for path in folder.iterdir():
            half_deleted = _is_named(path, STEP, WEIGHTS) and not is_checkpoint(path)
            if path.is_dir() and (path.name.startswith(_STAGING) or half_deleted):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(_STAGING):
                path.unlink(missing_ok=True)


# -- reading -----------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """A checkpoint's manifest, checked against itself.

    Raises:
        CheckpointError: when it is missing, cut or changed.
        NewerFormatError: when it is of a newer format.
    """
    path = folder / MANIFEST
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        stated, version = content.pop("checksum"), int(content["format"])
    except FileNotFoundError:
        raise CheckpointError(
            "this is no finished checkpoint: it has no manifest.json", where=str(folder)
        ) from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CheckpointError("the manifest is damaged: it is no whole JSON", where=str(path)) from None
    if stated != checksum(content):  # every format keeps this rule
        raise CheckpointError("the manifest is damaged: it does not match its checksum", where=str(path))
    if version > FORMAT:
        raise NewerFormatError(
            "the checkpoint is of a newer format than this version reads",
            where=str(folder),
            got=f"format {version}",
            allowed=f"format {FORMAT} and older",
            fix="update paceline",
        )
    if not _lists_files(content):
        raise CheckpointError("the manifest is damaged: it does not list its files", where=str(path))
    return content


def _lists_files(content: dict[str, Any]) -> bool:
    files, block = content.get("files"), content.get("block")
    return (
        isinstance(files, dict)
        and type(block) is int
        and block > 0
        and all(
            isinstance(entry, dict)
            and type(entry.get("bytes")) is int
            and isinstance(entry.get("crc32"), list)
            and len(entry["crc32"]) == -(-entry["bytes"] // block)
            for entry in files.values()
        )
    )


def verify(folder: Path, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file is as it was written.

    Args:
        rank, world: Ranks share the reading: this one takes its part of it.

    Raises:
        CheckpointError: naming the first file that is missing, of another size, or changed.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        _verify_size(folder, name, expected, "the checkpoint")
    blocks = [
        (name, index)
        for name, expected in manifest["files"].items()
        for index in range(len(expected["crc32"]))
    ]
    _verify_blocks(folder, manifest, blocks[rank::world], "the checkpoint")
    return manifest


def verify_together(folder: Path, strategy: Strategy) -> None:
    """``verify``, by all ranks, each a part of it. To be called on all of them.

    Raises:
        CheckpointError: on all ranks alike.
    """
    problem = None
    try:
        verify(folder, strategy.environment.rank, strategy.environment.world)
    except CheckpointError as error:
        problem = str(error)
    problem = next((p for p in strategy.gather(problem) if p is not None), None)
    if problem is not None:
        raise CheckpointError(problem)


def verify_file(folder: Path, name: str, manifest: dict[str, Any], of: str = "the checkpoint") -> None:
    """See that a file is as the manifest says.

    Raises:
        CheckpointError: when it is missing, of another size, or changed.
    """
    expected = manifest["files"][name]
    _verify_size(folder, name, expected, of)
    _verify_blocks(folder, manifest, [(name, i) for i in range(len(expected["crc32"]))], of)


def _verify_size(folder: Path, name: str, expected: dict[str, Any], of: str) -> None:
    path = folder / name
    if Path(name).name != name or path.is_symlink():
        raise CheckpointError("the manifest names a file outside its folder", got=name)
    if not path.is_file():
        raise CheckpointError(f"a file of {of} is missing", where=str(path))
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise CheckpointError(
            f"a file of {of} has another size than it was written with",
            where=str(path),
            got=f"{size} bytes",
            allowed=f"{expected['bytes']} bytes",
        )


def _verify_blocks(folder: Path, manifest: dict[str, Any], blocks: list[tuple[str, int]], of: str) -> None:
    size = manifest["block"]
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = pool.map(lambda block: _crc(folder / block[0], block[1] * size, size), blocks)
        for (name, index), found in zip(blocks, sums, strict=True):
            expected = manifest["files"][name]["crc32"][index]
            if found != expected:
                pool.shutdown(cancel_futures=True)
                raise CheckpointError(
                    f"a file of {of} is damaged",
                    where=f"{folder / name}, bytes {index * size} to "
                    f"{min((index + 1) * size, manifest['files'][name]['bytes'])}",
                    got=f"checksum {found}",
                    allowed=f"checksum {expected}",
                )


def read_state(folder: Path) -> Any:
    """What is in state.json.

    Raises:
        CheckpointError: when it is no JSON.
    """
    try:
        return json.loads((folder / STATE).read_bytes())
    except (ValueError, RecursionError):
        raise CheckpointError("this file of the checkpoint is no JSON", where=str(folder / STATE)) from None


def is_checkpoint(folder: Path) -> bool:
    """Whether this is a finished checkpoint; it may be damaged."""
    return (folder / MANIFEST).is_file()


def finished(folder: Path, kind: str = STEP) -> list[Path]:
    """The checkpoints under ``folder`` that have a manifest, oldest first.

    Args:
        kind: ``STEP`` for those a run can go on from, ``WEIGHTS`` for those of weights only.
    """
    if not folder.is_dir():
        return []
    found = (p for p in folder.iterdir() if _is_named(p, kind) and is_checkpoint(p))
    return sorted(found, key=lambda p: int(p.name.removeprefix(kind)))


def _is_named(path: Path, *kinds: str) -> bool:
    return any(path.name.startswith(k) and path.name.removeprefix(k).isdigit() for k in kinds)


def newest_valid(folders: Iterable[Path], strategy: Strategy, say: Any) -> Path | None:
    """The first of ``folders`` that verifies; damaged ones are named and set aside. On all ranks."""
    for folder in folders:
        try:
            verify_together(folder, strategy)
        except CheckpointError as error:
            say(f"skipped a damaged checkpoint: {' '.join(str(error).split())}")
            if strategy.environment.is_global_zero:
                with suppress(OSError):  # it is passed over in any case
                    folder.rename(_free_name(folder))
        else:
            return folder
    return None


def _free_name(folder: Path) -> Path:
    names = (f"{folder.name}.damaged{f'-{n}' if n else ''}" for n in count())
    return next(p for p in map(folder.with_name, names) if not p.exists())


# -- pointers ----------------------------------------------------------------------------------


def write_pointer(path: Path, name: str) -> None:
    """A small file that names a checkpoint beside it, replaced in one operation."""
    staging = staging_of(path)
    staging.write_text(name + "\n")
    os.replace(staging, path)


def read_pointer(path: Path) -> Path | None:
    """The checkpoint a pointer names, if it is there."""
    try:
        target = path.parent / Path(path.read_text().strip()).name
    except (OSError, UnicodeDecodeError):
        return None
    return target if is_checkpoint(target) else None


def checksum(content: dict[str, Any]) -> str:
    """The manifest's own: SHA-256 of the rest of it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shown_size(count: int) -> str:
    """A number of bytes as people read it: ``1.5 GB``."""
    power = max(p for p in range(4) if count >= 1000**p or p == 0)
    return f"{count / 1000**power:.4g} {('B', 'kB', 'MB', 'GB')[power]}"


def _crc(path: Path, start: int, length: int) -> str:
    value, buffer = 0, bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while length > 0 and (found := file.readinto(view[: min(length, _CHUNK)])):
            value = zlib.crc32(view[:found], value)
            length -= found
    return f"{value:08x}"
