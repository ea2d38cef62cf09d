"""Seeing that a checkpoint is as it was written, at next to no cost: in threads, while others read it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from ....common.remote_paths import url_of
from ....common.retries import retried
from ....strategies.ranks.collectives import Collectives, run_on_all
from ...storage.remote import RemoteError
from . import reading
from .format import MANIFEST, CheckpointError, UnreadableError, crc_of, read_manifest, unreadable
from .remote_run import complete

T = TypeVar("T")
_THREADS = min(8, os.cpu_count() or 1)


class Verification:
    """Compares every file of a checkpoint with its manifest.

    What is needed to read the rest (the manifest, state.json, the headers of tensor files) is compared at
    once; the rest in threads, until ``finish``. Used as a context, it ends its threads in any case.

    Args:
        rank: This rank compares its part of the rest.
        world_size: The number of ranks that share the rest.
        of: What it is, for messages.
        manifest: Where it is read already.
        compared: Called with the size of each part that was compared, in bytes; from several threads.

    Raises:
        CheckpointError: naming a file that is missing, of another size, or changed.
        UnreadableError: naming a file that the file system does not give.
    """

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        world_size: int = 1,
        of: str = "the checkpoint",
        manifest: dict[str, Any] | None = None,
        compared: Callable[[int], object] | None = None,
    ) -> None:
        self._folder, self._of, self._compared = folder, of, compared
        complete(folder)
        self.manifest = manifest or read_manifest(folder)
        rest: list[tuple[str, int]] = []
        for name, entry in self.manifest["files"].items():
            self._compare_size(name)
            first, blocks = self._blocks_of_head(name), range(len(entry["crc32"]))
            for index in blocks[:first]:
                self._compare(name, index)
            rest += [(name, index) for index in blocks[first:]]
        self._pool = ThreadPoolExecutor(_THREADS)
        self._rest = self._pool.map(lambda block: self._compare(*block), rest[rank::world_size])

    def finish(self) -> dict[str, Any]:
        """Wait until all is compared; the manifest.

        Raises:
            CheckpointError: as above.
        """
        for _ in self._rest:
            pass
        return self.manifest

    def __enter__(self) -> Verification:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _blocks_of_head(self, name: str) -> int:
        if not name.endswith(".safetensors"):
            return len(self.manifest["files"][name]["crc32"])

        def read() -> bytes:
            with (self._folder / name).open("rb") as file:
                return file.read(8)

        header = 8 + int.from_bytes(self._read(name, read), "little")
        return -(-header // int(self.manifest["block"]))

    def _compare_size(self, name: str) -> None:
        path, expected = self._folder / name, self.manifest["files"][name]["bytes"]
        if Path(name).name != name or self._read(name, path.is_symlink):
            raise CheckpointError(
                "the manifest names a file outside its folder", code="checkpoint-damaged", got=name
            )
        if not self._read(name, path.is_file):
            raise CheckpointError(
                f"a file of {self._of} is missing", code="checkpoint-damaged", where=str(path)
            )
        size = self._read(name, path.stat).st_size
        if size != expected:
            raise CheckpointError(
                f"a file of {self._of} has another size than it was written with",
                code="checkpoint-damaged",
                where=str(path),
                got=f"{size} bytes",
                allowed=f"{expected} bytes",
            )

    def _compare(self, name: str, index: int) -> None:
        size, entry = self.manifest["block"], self.manifest["files"][name]
        expected = entry["crc32"][index]
        found = self._read(name, lambda: crc_of(self._folder / name, index * size, size))
        if found != expected:
            raise CheckpointError(
                f"a file of {self._of} is damaged",
                code="checkpoint-damaged",
                where=f"{self._folder / name}, bytes {index * size} to "
                f"{min((index + 1) * size, entry['bytes'])}",
                got=f"checksum {found}",
                allowed=f"checksum {expected}",
            )
        if self._compared is not None:
            self._compared(min(size, entry["bytes"] - index * size))

    def _read(self, name: str, read: Callable[[], T]) -> T:
        try:
            return retried(read)
        except OSError as error:
            raise unreadable(self._folder / name, error) from None


def verify(
    folder: Path, of: str = "the checkpoint", compared: Callable[[int], object] | None = None
) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file is as it was written.

    Args:
        folder: Its folder.
        of: What it is, for messages.
        compared: As ``Verification`` takes it.

    Raises:
        CheckpointError: naming a file that is missing, of another size, or changed.
    """
    with Verification(folder, of=of, compared=compared) as check:
        return check.finish()


def verify_part(folder: Path, name: str, manifest: dict[str, Any]) -> None:
    """See that one file of a folder of predictions is as its manifest lists it.

    Raises:
        CheckpointError: when it is missing, of another size, or changed.
    """
    with Verification(
        folder, manifest=manifest | {"files": {name: manifest["files"][name]}}, of="predictions"
    ) as check:
        check.finish()


def begin(folder: Path, ranks: Collectives) -> Verification:
    """A verification that all ranks share: all call this, and ``finish_on_all``."""
    if url_of(folder) is not None:
        _fetch_on_all(folder, ranks)

    def opened() -> Verification:
        return Verification(folder, ranks.rank, ranks.world_size, manifest=reading.read_manifest(folder))

    return _on_all(ranks, opened)


def _fetch_on_all(folder: Path, ranks: Collectives) -> None:
    """The copy of one checkpoint on every machine: that of rank 0, wherever others come from."""
    is_zero = ranks.is_global_zero

    def first() -> bytes | None:
        if not is_zero:
            return None
        complete(folder)
        return (folder / MANIFEST).read_bytes()

    manifest = ranks.broadcast(_on_all(ranks, first))
    _on_all(ranks, lambda: complete(folder, manifest))


def finish_on_all(check: Verification, ranks: Collectives) -> None:
    """``check.finish()`` on all ranks: what one of them finds is raised on each."""
    _on_all(ranks, check.finish)


def _on_all(ranks: Collectives, function: Callable[[], T]) -> T:
    return run_on_all(ranks.all_gather, function, CheckpointError, UnreadableError, RemoteError)


def set_aside(folder: Path) -> None:
    """Rename a damaged checkpoint, so that nobody takes it again: ``.damaged``."""
    names = (f"{folder.name}.damaged{f'-{n}' if n else ''}" for n in count())
    folder.rename(next(p for p in map(folder.with_name, names) if not p.exists()))
