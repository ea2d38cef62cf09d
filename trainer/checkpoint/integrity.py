"""Seeing that a checkpoint is as it was written, at next to no cost: in threads, while others read it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from ...strategies import Strategy
from ...strategies.collectives import run_on_all
from .format import CheckpointError, crc_of, read_manifest

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

    Raises:
        CheckpointError: naming a file that is missing, of another size, or changed.
    """

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        world_size: int = 1,
        of: str = "the checkpoint",
        manifest: dict[str, Any] | None = None,
    ) -> None:
        self._folder, self._of = folder, of
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
        try:
            with (self._folder / name).open("rb") as file:
                header = 8 + int.from_bytes(file.read(8), "little")
        except OSError as error:
            raise CheckpointError(f"a file of {self._of} cannot be read", got=str(error)) from None
        return -(-header // int(self.manifest["block"]))

    def _compare_size(self, name: str) -> None:
        path, expected = self._folder / name, self.manifest["files"][name]["bytes"]
        if Path(name).name != name or path.is_symlink():
            raise CheckpointError("the manifest names a file outside its folder", got=name)
        if not path.is_file():
            raise CheckpointError(f"a file of {self._of} is missing", where=str(path))
        size = path.stat().st_size
        if size != expected:
            raise CheckpointError(
                f"a file of {self._of} has another size than it was written with",
                where=str(path),
                got=f"{size} bytes",
                allowed=f"{expected} bytes",
            )

    def _compare(self, name: str, index: int) -> None:
        size, entry = self.manifest["block"], self.manifest["files"][name]
        expected = entry["crc32"][index]
        try:
            found = crc_of(self._folder / name, index * size, size)
        except OSError as error:
            raise CheckpointError(
                f"a file of {self._of} cannot be read", where=str(self._folder / name), got=str(error)
            ) from None
        if found != expected:
            raise CheckpointError(
                f"a file of {self._of} is damaged",
                where=f"{self._folder / name}, bytes {index * size} to "
                f"{min((index + 1) * size, entry['bytes'])}",
                got=f"checksum {found}",
                allowed=f"checksum {expected}",
            )


def verify(folder: Path, of: str = "the checkpoint") -> dict[str, Any]:
    """The manifest of a checkpoint whose every file is as it was written.

    Raises:
        CheckpointError: naming a file that is missing, of another size, or changed.
    """
    with Verification(folder, of=of) as check:
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


def begin(folder: Path, strategy: Strategy) -> Verification:
    """A verification that all ranks share: all call this, and ``run_on_all`` with its ``finish``."""
    rank, world_size = strategy.environment.rank, strategy.environment.world_size
    return run_on_all(strategy.all_gather, lambda: Verification(folder, rank, world_size), CheckpointError)


def set_aside(folder: Path) -> None:
    """Rename a damaged checkpoint, so that nobody takes it again: ``.damaged``."""
    names = (f"{folder.name}.damaged{f'-{n}' if n else ''}" for n in count())
    folder.rename(next(p for p in map(folder.with_name, names) if not p.exists()))
