"""Checkpoint folders on disk: written whole or not at all, verified before they are read.

    step-00000500/
      manifest.json          format, counters, every file's size and checksum, last its own
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
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import PacelineError
from ..strategies.base import Strategy

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
_STAGING = ".staging-"
_CHUNK = 1 << 22


class CheckpointError(PacelineError):
    """A checkpoint that is missing or damaged."""


class NewerFormatError(PacelineError):
    """A checkpoint that is whole, and of a format this version does not know."""


def write(
    target: Path,
    strategy: Strategy,
    tensors: dict[str, Tensor],
    state: Callable[[], Any],
    manifest: Any,
    on_rank_zero: Callable[[Callable[[], None]], None],
) -> None:
    """Write a checkpoint folder. Called on all ranks: each writes its tensors, rank 0 all else.

    Args:
        target: The folder to be; it must not exist.
        tensors: By name, ``model.*`` and ``optim.*``; the same ones on several ranks are written once.
        state: Gives plain JSON data.
        manifest: Plain JSON data that becomes part of the manifest.
        on_rank_zero: Runs a function on rank 0 while all wait, and raises its error on all of them.

    Raises:
        CheckpointError: when the target exists.
    """
    staging = staging_of(target)

    def prepare() -> None:
        if target.exists():
            raise CheckpointError("a checkpoint is never written over", where=str(target))
        begin(target)

    def finish() -> None:
        _rename_shards(staging)
        _write_synced(staging / STATE, json.dumps(state()).encode())
        commit(target, manifest)

    on_rank_zero(prepare)
    try:
        files = {name: 1 if name.startswith("model.") else 2 for name in tensors}
        strategy.save_tensors(str(staging), _unshared(tensors), files)
        on_rank_zero(finish)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def staging_of(target: Path) -> Path:
    """Where a folder is written before it appears."""
    return target.parent / f"{_STAGING}{target.name}"


def begin(target: Path) -> None:
    """Make an empty staging folder for ``target``."""
    staging = staging_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()


def commit(target: Path, manifest: Any) -> None:
    """Seal the staging folder and make it ``target``."""
    staging = staging_of(target)
    seal(staging, manifest)
    os.rename(staging, target)
    _sync_folder(target.parent)


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights as a copy each: safetensors refuses tensors that share memory."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        memory = _memory_of(tensor)
        result[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return result


def _memory_of(tensor: Tensor) -> int:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.untyped_storage().data_ptr() if local.numel() else id(tensor)


def seal(folder: Path, manifest: Any) -> None:
    """Write the manifest over the files that are in ``folder``, and sync both."""
    names = sorted(p.name for p in folder.iterdir() if p.name != MANIFEST)
    files = {n: {"bytes": (folder / n).stat().st_size, "crc32": _crc(folder / n)} for n in names}
    content = {"format": FORMAT, **manifest, "files": files}
    content["checksum"] = _checksum(content)
    _write_synced(folder / MANIFEST, json.dumps(content, indent=1).encode())
    _sync_folder(folder)


def _rename_shards(folder: Path) -> None:
    """``shard-00001-model-00002-of-00002.safetensors`` (2: optimizer) -> ``optim-00001.safetensors``."""
    for path in folder.glob("shard-*.safetensors"):
        shard, kind = path.name.split("-")[1], path.name.split("-")[3]
        path.rename(folder / f"{'model' if int(kind) == 1 else 'optim'}-{shard}.safetensors")


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
    except (ValueError, KeyError, AttributeError, TypeError):
        raise CheckpointError("the manifest is damaged: it is no whole JSON", where=str(path)) from None
    if version > FORMAT:
        raise NewerFormatError(
            "the checkpoint is of a newer format than this version reads",
            where=str(folder),
            got=f"format {version}",
            allowed=f"format {FORMAT} and older",
            fix="update paceline",
        )
    if stated != _checksum(content):
        raise CheckpointError("the manifest is damaged: it does not match its checksum", where=str(path))
    return content


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file is as it was written.

    Raises:
        CheckpointError: naming the first file that is missing, of another size, or changed.
    """
    manifest = read_manifest(folder)
    for name, expected in manifest["files"].items():
        verify_file(folder, name, expected)
    return manifest


def verify_file(folder: Path, name: str, expected: dict[str, Any], of: str = "the checkpoint") -> None:
    """See that a file is as the manifest says.

    Raises:
        CheckpointError: when it is missing, of another size, or changed.
    """
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
    found = _crc(path)
    if found != expected["crc32"]:
        raise CheckpointError(
            f"a file of {of} is damaged",
            where=str(path),
            got=f"checksum {found}",
            allowed=f"checksum {expected['crc32']}",
        )


def read_state(folder: Path) -> Any:
    """What ``write`` was given as ``state``."""
    return json.loads((folder / STATE).read_bytes())


def delete(folder: Path) -> None:
    """Delete a checkpoint, its manifest first: one that is half deleted is never taken for whole."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def finished(folder: Path) -> list[Path]:
    """The checkpoints under ``folder`` that have a manifest, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.glob("step-*") if (p / MANIFEST).is_file() and _is_step(p))


def _is_step(path: Path) -> bool:
    return path.name.removeprefix("step-").isdigit()


def newest_valid(folders: Iterable[Path], say: Any) -> Path | None:
    """The first of ``folders`` that verifies; damaged ones are named and set aside."""
    for folder in folders:
        try:
            verify(folder)
        except CheckpointError as error:
            say(f"skipped a damaged checkpoint: {' '.join(str(error).split())}")
            folder.rename(_free_name(folder))
        else:
            return folder
    return None


def _free_name(folder: Path) -> Path:
    names = (f"{folder.name}.damaged{f'-{n}' if n else ''}" for n in count())
    return next(p for p in map(folder.with_name, names) if not p.exists())


def sweep(folder: Path) -> None:
    """Remove what an earlier process left half-written or half-deleted."""
    if folder.is_dir():
        for path in folder.iterdir():
            half_deleted = _is_step(path) and not (path / MANIFEST).exists()
            if path.name.startswith(_STAGING) or half_deleted:
                shutil.rmtree(path, ignore_errors=True)


def write_pointer(path: Path, name: str) -> None:
    """A small file that names a checkpoint beside it, replaced in one operation."""
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    staging.write_text(name + "\n")
    os.replace(staging, path)


def read_pointer(path: Path) -> Path | None:
    """The checkpoint a pointer names, if it is there."""
    if not path.is_file():
        return None
    target = path.parent / Path(path.read_text().strip()).name
    return target if (target / MANIFEST).is_file() else None


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _crc(path: Path) -> str:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return f"{value:08x}"


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
