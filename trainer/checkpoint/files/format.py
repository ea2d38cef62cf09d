"""Checkpoint folders on disk: written whole or not at all, verified before they are read.

    step-00000500/
      manifest.json          format, counters, every file's size and checksums, last its own
      state.json             plain data
      model-*.safetensors    optim-*.safetensors

A folder is written under another name beside its target, synced, given its manifest last, and renamed.
Where the target exists, that is renamed first, to ``step-00000500.replaced``, and deleted afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ....common.checksums import crc32
from ....common.retries import retried
from ....errors import PacelineError

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
STEP, WEIGHTS = "step-", "weights-"
_STAGING = ".staging-"
_REPLACED = ".replaced"
_BLOCK = 4 << 20
_CHUNK = 1 << 20
_THREADS = min(8, os.cpu_count() or 1)


class CheckpointError(PacelineError):
    """A checkpoint that is missing, damaged, or could not be written."""


class NewerFormatError(PacelineError):
    """A checkpoint that is whole, and of a format this version does not know."""


class UnreadableError(PacelineError):
    """A checkpoint that the file system does not give now; it may be whole."""


def unreadable(path: Path, error: OSError) -> UnreadableError:
    """The error for a file that exists and could not be read, several attempts included."""
    return UnreadableError(
        "a file of the checkpoint cannot be read; the checkpoint is left as it is",
        where=str(path),
        got=str(error),
        fix="see to the file system, and resume again",
    )


# -- writing -----------------------------------------------------------------------------------


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
    replaced = target.with_name(target.name + _REPLACED)
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


def _listed(folder: Path) -> list[Path]:
    return retried(lambda: list(folder.iterdir()))


def _rename(source: Path, target: Path) -> None:
    def rename() -> None:
        if source.exists() or not target.exists():  # an attempt that failed may have taken effect
            os.rename(source, target)

    retried(rename)


def seal(folder: Path, manifest: Any, entries: dict[str, Any]) -> None:
    """Write the manifest over the files that are in ``folder``, and sync both."""
    here = {p.name for p in _listed(folder) if p.name != MANIFEST}
    names = sorted(here | entries.keys())  # other machines may have written some into a folder of theirs
    files = {name: entries.get(name) or retried(partial(entry_of, folder / name)) for name in names}
    content = {"format": FORMAT, **manifest, "block": _BLOCK, "files": files}
    write_synced(folder / MANIFEST, sealed(content))
    sync_folder(folder)


def entry_of(path: Path) -> dict[str, Any]:
    """A file's entry in the manifest: its size, and the CRC-32 of each 4 MiB of it."""
    size = path.stat().st_size
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = list(pool.map(lambda start: crc_of(path, start, _BLOCK), range(0, size, _BLOCK)))
    return {"bytes": size, "crc32": sums}


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
        (folder / MANIFEST).unlink(missing_ok=True)
    remove(folder)


def remove(path: Path) -> None:
    """Remove a file, or a folder and all that is in it; of a link only the link, not what it leads to."""
    if path.is_symlink() or not retried(path.is_dir):
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def recover(folder: Path) -> None:
    """Give checkpoints their names back that a killed process had renamed, and not replaced yet."""
    for path in finished(folder, STEP) + finished(folder, WEIGHTS):
        if path.name.endswith(_REPLACED):
            remove(target := path.with_name(path.name.removesuffix(_REPLACED)))
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
        half_deleted = _is_named(path.name, STEP, WEIGHTS) and not is_checkpoint(path)
        replaced = path.name.endswith(_REPLACED) and path not in present
        return path.name.startswith(_STAGING) or half_deleted or replaced

    present = finished(folder, STEP) + finished(folder, WEIGHTS)
    return list(filter(is_junk, _listed(folder))) if retried(folder.is_dir) else []


# -- reading -----------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """A checkpoint's manifest, checked against itself.

    Raises:
        CheckpointError: when it is missing, cut or changed.
        NewerFormatError: when it is of a newer format.
        UnreadableError: when the file system does not give it.
    """
    path = folder / MANIFEST
    try:
        text = retried(path.read_bytes)
        content: dict[str, Any] = json.loads(text, object_pairs_hook=_once)
        del content["checksum"]
        version = content["format"]
        if type(version) is not int:
            raise ValueError
    except FileNotFoundError:
        raise CheckpointError(
            "this is no finished checkpoint: it has no manifest.json", where=str(folder)
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CheckpointError("the manifest is damaged: it is not valid JSON", where=str(path)) from None
    before, _, _ = text.rpartition(_TAIL[0])
    if text != _with_checksum(before):  # every format keeps this rule
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which no key may be given twice: readers differ in which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _lists_files(content: dict[str, Any]) -> bool:
    files, block = content.get("files"), content.get("block")
    return (
        isinstance(files, dict)
        and type(block) is int
        and block > 0
        and all(
            isinstance(entry, dict)
            and type(entry.get("bytes")) is int
            and entry["bytes"] >= 0
            and isinstance(entry.get("crc32"), list)
            and len(entry["crc32"]) == -(-entry["bytes"] // block)
            for entry in files.values()
        )
    )


def tensor_files(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """The safetensors files that the manifest lists: no other is ever opened."""
    return [folder / name for name in manifest["files"] if name.endswith(".safetensors")]


def unlisted(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """The names in a checkpoint's folder that its manifest does not list."""
    return sorted(
        p.name
        for p in _listed(folder)
        if p.name not in (MANIFEST, *manifest["files"]) and not p.name.endswith(".part")
    )


def warn_of_unlisted(folder: Path, manifest: dict[str, Any]) -> None:
    """One warning that names what ``unlisted`` finds."""
    found = unlisted(folder, manifest)
    if found:
        warnings.warn(
            f"{folder} holds files that its manifest does not list; they are not read: {', '.join(found)}",
            stacklevel=2,
        )


def read_state(folder: Path, manifest: dict[str, Any]) -> Any:
    """What is in state.json.

    Raises:
        CheckpointError: when the manifest does not list it, and when it is no JSON.
        UnreadableError: when the file system does not give it.
    """
    if STATE not in manifest["files"]:
        raise CheckpointError("the manifest is damaged: it does not list state.json", where=str(folder))
    try:
        return json.loads(retried((folder / STATE).read_bytes), object_pairs_hook=_once)
    except OSError as error:
        raise unreadable(folder / STATE, error) from None
    except (ValueError, RecursionError):
        raise CheckpointError("this file of the checkpoint is no JSON", where=str(folder / STATE)) from None


def is_checkpoint(folder: Path) -> bool:
    """Whether this is a finished checkpoint; it may be damaged."""
    return retried((folder / MANIFEST).is_file)


def finished(folder: Path, kind: str = STEP) -> list[Path]:
    """The checkpoints under ``folder`` that have a manifest, oldest first.

    One that was renamed to be replaced is among them as long as there is no other of its step.

    Args:
        folder: The ``checkpoints`` folder of a run; it need not exist.
        kind: ``STEP`` for those a run can resume from, ``WEIGHTS`` for those of weights only.
    """
    if not retried(folder.is_dir):
        return []
    by_name: dict[str, Path] = {}
    for path in sorted(filter(is_checkpoint, _listed(folder)), reverse=True):
        name = path.name.removesuffix(_REPLACED)
        if _is_named(name, kind):
            by_name[name] = path  # sorted: the name as it is comes last
    return sorted(by_name.values(), key=lambda p: int(p.name.removesuffix(_REPLACED).removeprefix(kind)))


def _is_named(name: str, *kinds: str) -> bool:
    return any(name.startswith(k) and name.removeprefix(k).isdecimal() for k in kinds)


_TAIL = (b',\n "checksum": "', b'"\n}')


def sealed(content: dict[str, Any]) -> bytes:
    """The text of a manifest: JSON whose last entry is the SHA-256 of all the text before it."""
    return _with_checksum(json.dumps(content, indent=1).encode().removesuffix(b"\n}"))


def _with_checksum(text: bytes) -> bytes:
    return text + hashlib.sha256(text).hexdigest().encode().join(_TAIL)


_of_thread = threading.local()


def _buffer() -> memoryview:
    """This thread's own, kept: memory that is new for each block would hold other threads up."""
    if not hasattr(_of_thread, "buffer"):
        _of_thread.buffer = memoryview(bytearray(_CHUNK))
    found: memoryview = _of_thread.buffer
    return found


def crc_of(path: Path, start: int, length: int) -> str:
    """The CRC-32 of a part of a file."""
    value, view = 0, _buffer()
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while length > 0 and (found := file.readinto(view[: min(length, _CHUNK)])):
            value = crc32(view[:found], value)
            length -= found
    return f"{value:08x}"
