"""A run in an object store: its folder here is what is sent, and a cache of what was.

A checkpoint is written here first, as everywhere. Then each rank sends its files, and rank 0 last of all
``manifest.json``: a checkpoint without it does not exist, whenever a process was killed. One that takes
the place of another is sent into another folder, ``step-00000500.1``. Logs and other files of the run
are sent before the manifest, so that those of a checkpoint are never older than it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from ....common.remote_paths import is_remote, url_of
from ....errors import PacelineError
from ...storage.locked import locked
from ...storage.remote import Remote, RemoteError
from ...utils.paths import as_path
from . import commit
from . import format as files

_FOLDER = "checkpoints"
_ENVIRONMENT = "env.json"
_OWN = ("stacks",)  # what belongs to processes of one machine
_WRITTEN = ".written"
"""In a folder that a process of this machine has written, and not only fetched."""


class RemoteRun:
    """The remote side of a run's folder.

    Args:
        folder: The run's folder in the cache.
        url: Its address.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self._remote = folder, Remote(url)
        self._sent: dict[str, tuple[int, int]] = {}

    @classmethod
    def of(cls, folder: Path | None) -> RemoteRun | None:
        """That of a run's folder; None where the folder is not in the cache."""
        url = None if folder is None else url_of(folder)
        return None if folder is None or url is None else cls(folder, url)

    def claim(self) -> bool:
        """Send config.yaml, if no other process has begun a run of this number. Whether it was sent."""
        name = "config.yaml"
        return self._remote.write(name, (self.folder / name).read_bytes(), only_new=True)

    # -- sending -------------------------------------------------------------------------------

    def send_logs(self, ending: str | None = None) -> None:
        """Send what has changed in the folder since the last time, checkpoints apart.

        Args:
            ending: Only files whose names end so: rank 0 alone has the newest version of all others.
        """
        found: dict[str, tuple[int, int]] = {}
        below = os.walk(self.folder)  # passes over what vanishes: checkpoints are renamed meanwhile
        for path in (Path(at, one) for at, _, names in below for one in names):
            name = path.relative_to(self.folder).as_posix()
            is_checkpoint = name.startswith(f"{_FOLDER}/") and name.count("/") > 1
            is_other = ending is not None and not name.endswith(ending)
            if not (is_checkpoint or is_other or name.startswith(_OWN) or path.name.startswith(".")):
                with suppress(FileNotFoundError):
                    about = path.stat()
                    if path.is_file():
                        found[name] = about.st_size, about.st_mtime_ns
        changed = [name for name, about in found.items() if self._sent.get(name) != about]
        self._remote.send({name: self.folder / name for name in changed}, may_vanish=True)
        self._sent |= found

    def holds(self, target: Path) -> bool:
        """Whether a checkpoint is one of this run's own."""
        return target.parent == self.folder / _FOLDER

    def place_of(self, target: Path) -> str:
        """The folder that a checkpoint is sent to: its name's, or one beside that of one it replaces."""
        there = self._remote.names(_FOLDER)
        complete = _complete(there)
        numbers = [n for n, folder in _attempts(there, target.name) if folder in complete]
        return f"{target.name}.{max(numbers) + 1}" if numbers else target.name

    def send_files(self, target: Path, place: str, names: Iterable[str]) -> None:
        """Send files of a checkpoint that this rank has written.

        On a machine whose rank did not commit it they are in the staging folder, and deleted afterwards.
        """
        names = list(names)
        staging = commit.staging_of(target)
        at = {name: staging / name if (staging / name).exists() else target / name for name in names}
        self._remote.send({f"{_FOLDER}/{place}/{name}": path for name, path in at.items()})
        for path in at.values():
            if path.parent == staging:
                path.unlink()
        with suppress(OSError):
            staging.rmdir()

    def commit(self, target: Path, place: str) -> None:
        """Send logs, compare sizes, and send the manifest: from now on the checkpoint exists.

        Raises:
            CheckpointError: when a file in the store is not as it was sent.
        """
        self.send_logs()
        manifest = files.read_manifest(target)
        self.send_files(target, place, [files.STATE])
        there = self._remote.names(f"{_FOLDER}/{place}")
        for name, entry in manifest["files"].items():
            size = there.get(f"{_FOLDER}/{place}/{name}")
            if size != entry["bytes"]:
                raise files.CheckpointError(
                    "a file in the object store is not as it was sent",
                    code="checkpoint-damaged",
                    where=f"{self._remote.url}/{_FOLDER}/{place}/{name}",
                    got=f"{size} bytes",
                    allowed=f"{entry['bytes']} bytes",
                )
        name = f"{_FOLDER}/{place}/{files.MANIFEST}"
        self._remote.write(name, (target / files.MANIFEST).read_bytes())
        if place != target.name:
            with suppress(RemoteError):  # the newest one counts
                self.drop(target.name, keep=place)

    def send(self, checkpoint: Path) -> None:
        """Send a checkpoint that is complete here and not in the store, because a process was killed."""
        if not self.has(checkpoint.name):
            place = self.place_of(checkpoint)
            self.send_files(checkpoint, place, files.read_manifest(checkpoint)["files"])
            self.commit(checkpoint, place)

    def remove(self) -> None:
        """Delete the run."""
        self._remote.delete(self._remote.names())

    def drop(self, name: str, keep: str | None = None) -> None:
        """Delete a checkpoint, its manifest first.

        Args:
            name: The checkpoint's name.
            keep: Of the folders that it was sent to, the one that stays.
        """
        there = self._remote.names(_FOLDER)
        folders = {PurePosixPath(path).parts[1] for path in there if path.count("/") > 1}
        gone = [f for f in folders if f.partition(".")[0] == name and f != keep]
        parts = [path for path in there if PurePosixPath(path).parts[1] in gone]
        self._remote.delete(path for path in parts if path.endswith(files.MANIFEST))
        self._remote.delete(path for path in parts if not path.endswith(files.MANIFEST))

    # -- fetching ------------------------------------------------------------------------------

    def pull(self, *, to_write: bool) -> None:
        """Bring the folder up to date: logs, configuration, and manifests of checkpoints.

        Args:
            to_write: The run is to continue here, and its folder is held: what the store has counts, but
                for logs of a machine that has a checkpoint as new as the store's. Without it, nothing
                is changed in a folder that a process of this machine has written.
        """
        there = self._remote.names()
        if _ENVIRONMENT in there:
            with locked(self.folder):
                if not self._is_same_run():
                    self._clear()
                self._pull(there, to_write)

    def _pull(self, there: dict[str, int], to_write: bool) -> None:
        manifests, is_written_here = dict(_committed(there)), (self.folder / _WRITTEN).exists()
        newest_here = max(map(_step_of, self._here()), default=-1)
        is_newer_here = newest_here >= max(map(_step_of, manifests), default=-1)
        keeps = is_written_here and (is_newer_here or not to_write)
        wanted = {
            name: self.folder / name
            for name in there
            if not (name.startswith(f"{_FOLDER}/") and name.count("/") > 1)
            and not (keeps and (self.folder / name).exists())
        }
        self._remote.fetch(wanted)
        for name, folder in manifests.items():
            local = self.folder / _FOLDER / name
            is_here = files.is_checkpoint(local)
            if is_here and is_written_here and not to_write:
                continue
            content = self._remote.read(f"{_FOLDER}/{folder}/{files.MANIFEST}")
            if is_here and (local / files.MANIFEST).read_bytes() == content:
                continue
            commit.delete(local)  # one that was replaced in the store
            local.mkdir(parents=True)
            commit.write_synced(local / files.MANIFEST, content)

    def _here(self) -> list[str]:
        folder = self.folder / _FOLDER
        return [p.name for kind in (files.STEP, files.WEIGHTS) for p in files.finished(folder, kind)]

    def _clear(self) -> None:
        """Delete the copy of another run, which the store no longer has."""
        for path in self.folder.iterdir():
            if path.name == ".lock":  # which this process may hold
                continue
            path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)

    def has_any(self) -> bool:
        """Whether there is a complete checkpoint, here or in the store."""
        return bool(self._here() or dict(_committed(self._remote.names(_FOLDER))))

    def catch_up(self, checkpoint: Path) -> None:
        """Before the run continues from a checkpoint here: what killed processes have left undone.

        The checkpoint is sent if the store does not have it; those that are incomplete there are deleted,
        and those here that are older and were dropped in the store.
        """
        self.send(checkpoint)
        there = self._remote.names(_FOLDER)
        complete, committed = _complete(there), dict(_committed(there))
        parts = [path for path in there if path.count("/") > 1]
        self._remote.delete(path for path in parts if PurePosixPath(path).parts[1] not in complete)
        for name in self._here():
            if name not in committed and _step_of(name) < _step_of(checkpoint.name):
                commit.delete(checkpoint.parent / name)

    def _is_same_run(self) -> bool:
        path = self.folder / _ENVIRONMENT
        if not path.exists():
            return not self.folder.exists() or not self._here()
        first, second = json.loads(path.read_bytes()), json.loads(self._remote.read(_ENVIRONMENT))
        return all(first.get(key) == second.get(key) for key in ("started", "host", "program"))

    def complete(self, checkpoint: Path, manifest: bytes | None = None) -> None:
        """Fetch the files of a checkpoint that are not here, and compare them with its manifest.

        Args:
            checkpoint: Its folder here.
            manifest: The text that its manifest must have, as rank 0 has it.

        Raises:
            CheckpointError: naming a file in the store that is missing or changed.
        """
        with locked(self.folder):
            is_here = files.is_checkpoint(checkpoint)
            if is_here and manifest is not None and (checkpoint / files.MANIFEST).read_bytes() != manifest:
                commit.delete(checkpoint)  # of an earlier run, or one that was replaced
                is_here = False
            if is_here and not _missing(checkpoint):
                return
            folder = dict(_committed(self._remote.names(_FOLDER))).get(checkpoint.name)
            if folder is not None:
                self._complete(checkpoint, f"{_FOLDER}/{folder}", manifest)
            elif not is_here:
                raise files.CheckpointError(
                    "there is no checkpoint at this address",
                    code="checkpoint-not-found",
                    where=f"{self._remote.url}/{_FOLDER}/{checkpoint.name}",
                )

    def _complete(self, checkpoint: Path, prefix: str, manifest: bytes | None) -> None:
        try:
            if not files.is_checkpoint(checkpoint):
                self._remote.fetch({f"{prefix}/{files.MANIFEST}": checkpoint / files.MANIFEST})
            if manifest is not None and (checkpoint / files.MANIFEST).read_bytes() != manifest:
                raise files.CheckpointError(
                    "the object store has another checkpoint than the machine of rank 0",
                    code="remote-failed",
                    where=f"{self._remote.url}/{prefix}",
                )
            missing = _missing(checkpoint)
            self._remote.fetch({f"{prefix}/{name}": checkpoint / name for name in missing})
        except FileNotFoundError as error:
            raise files.CheckpointError(
                "a file of the checkpoint is missing in the object store",
                code="checkpoint-damaged",
                where=str(error),
            ) from None
        entries = files.read_manifest(checkpoint)["files"]
        for name in missing:
            if files.entry_of(checkpoint / name) != entries[name]:
                (checkpoint / name).unlink()
                raise files.CheckpointError(
                    "a file of the checkpoint is damaged in the object store",
                    code="checkpoint-damaged",
                    where=f"{self._remote.url}/{prefix}/{name}",
                )

    def has(self, name: str) -> bool:
        """Whether the store has a complete checkpoint of this name."""
        return name in dict(_committed(self._remote.names(_FOLDER)))


def numbered_runs(runs: Path) -> list[Path]:
    """The folders of the runs of a name that the store has, newest first.

    Args:
        runs: ``<run_dir>/<name>`` in the cache.
    """
    url = url_of(runs)
    assert url is not None
    names = [name for name in Remote(url).folders() if name.isdecimal()]
    return [runs / name for name in sorted(names, key=int, reverse=True)]


def mark_written(folder: Path) -> None:
    """Note that a process of this machine writes a run: its files are not replaced by older ones."""
    (folder / _WRITTEN).touch()


def complete(checkpoint: Path, manifest: bytes | None = None) -> None:
    """Fetch what is missing of a checkpoint in the cache; nothing for one elsewhere.

    Args:
        checkpoint: Its folder.
        manifest: The text that its manifest must have, as rank 0 has it.

    Raises:
        CheckpointError: where the store does not have it as its manifest says.
    """
    run = RemoteRun.of(checkpoint.parent.parent)
    if run is not None and checkpoint.parent.name == _FOLDER:
        run.complete(checkpoint, manifest)


def local_path(given: object, what: str) -> Path:
    """The path of a run or checkpoint; that of an address is in the cache, brought up to date.

    Args:
        given: A path or an address.
        what: What takes it, for an error.
    """
    path = as_path(given, what, remote=True)
    if is_remote(given):
        _bring(path)
    return path


def _bring(path: Path) -> None:
    if path.parent.name == _FOLDER:
        path = path.parent.parent
    url = url_of(path)
    assert url is not None
    there = Remote(url).names()
    runs = {PurePosixPath(name).parent for name in there if PurePosixPath(name).name == _ENVIRONMENT}
    if not runs:
        raise PacelineError("there is no run at this address or below it", code="run-not-found", where=url)
    for run in runs:
        found = RemoteRun.of(path / run)
        assert found is not None
        found.pull(to_write=False)


def _attempts(there: Iterable[str], name: str) -> Iterator[tuple[int, str]]:
    """The folders of a checkpoint in the store, complete or not, with their numbers."""
    for folder in {PurePosixPath(path).parts[1] for path in there if path.count("/") > 1}:
        first, _, number = folder.partition(".")
        if first == name and (number.isdecimal() or not number):
            yield int(number or 0), folder


def _committed(there: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The names of the checkpoints in the store, with the newest folder of each that is complete."""
    there = {path for path in there if path.startswith(f"{_FOLDER}/")}
    complete = _complete(there)
    for name in sorted({folder.partition(".")[0] for folder in complete}):
        yield name, max((n, folder) for n, folder in _attempts(there, name) if folder in complete)[1]


def _complete(there: Iterable[str]) -> set[str]:
    """The folders that have a manifest."""
    return {PurePosixPath(path).parts[-2] for path in there if path.endswith(f"/{files.MANIFEST}")}


def _step_of(name: str) -> int:
    return int(name.partition(".")[0].rpartition("-")[2])


def _missing(checkpoint: Path) -> list[str]:
    entries = files.read_manifest(checkpoint)["files"]

    def is_here(name: str) -> bool:
        path = checkpoint / name
        return path.is_file() and path.stat().st_size == entries[name]["bytes"]

    return [name for name in entries if not is_here(name)]
