"""Checkpoint folders on disk, as they are found: which are whole, and what their manifests say.

    step-00000500/
      manifest.json          format, counters, every file's size and checksums, last its own
      state.json             plain data
      model-*.safetensors    optim-*.safetensors

commit.py writes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ....common.checksums import crc32
from ....common.retries import retried
from ....errors import PacelineError

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
STEP, WEIGHTS = "step-", "weights-"
REPLACED = ".replaced"
BLOCK = 4 << 20
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
        code="checkpoint-unreadable",
        where=str(path),
        got=str(error),
        fix="see to the file system, and resume again",
    )


def listed(folder: Path) -> list[Path]:
    """What is in a folder."""
    return retried(lambda: list(folder.iterdir()))


def entry_of(path: Path) -> dict[str, Any]:
    """A file's entry in the manifest: its size, and the CRC-32 of each 4 MiB of it."""
    size = path.stat().st_size
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = list(pool.map(lambda start: crc_of(path, start, BLOCK), range(0, size, BLOCK)))
    return {"bytes": size, "crc32": sums}


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
            "this is no finished checkpoint: it has no manifest.json",
            code="checkpoint-not-found",
            where=str(folder),
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CheckpointError(
            "the manifest is damaged: it is not valid JSON", code="checkpoint-damaged", where=str(path)
        ) from None
    before, _, _ = text.rpartition(_TAIL[0])
    if text != _with_checksum(before):  # every format keeps this rule
        raise CheckpointError(
            "the manifest is damaged: it does not match its checksum",
            code="checkpoint-damaged",
            where=str(path),
        )
    if version > FORMAT:
        raise NewerFormatError(
            "the checkpoint is of a newer format than this version reads",
            code="checkpoint-newer",
            where=str(folder),
            got=f"format {version}",
            allowed=f"format {FORMAT} and older",
            fix="update paceline",
        )
    if not _lists_files(content):
        raise CheckpointError(
            "the manifest is damaged: it does not list its files",
            code="checkpoint-damaged",
            where=str(path),
        )
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
        for p in listed(folder)
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
        raise CheckpointError(
            "the manifest is damaged: it does not list state.json",
            code="checkpoint-damaged",
            where=str(folder),
        )
    try:
        return json.loads(retried((folder / STATE).read_bytes), object_pairs_hook=_once)
    except OSError as error:
        raise unreadable(folder / STATE, error) from None
    except (ValueError, RecursionError):
        raise CheckpointError(
            "this file of the checkpoint is no JSON", code="checkpoint-damaged", where=str(folder / STATE)
        ) from None


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
    for path in sorted(filter(is_checkpoint, listed(folder)), reverse=True):
        name = path.name.removesuffix(REPLACED)
        if is_named(name, kind):
            by_name[name] = path  # sorted: the name as it is comes last
    return sorted(by_name.values(), key=lambda p: int(p.name.removesuffix(REPLACED).removeprefix(kind)))


def is_named(name: str, *kinds: str) -> bool:
    """Whether a folder of this name is a checkpoint of one of these kinds."""
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
