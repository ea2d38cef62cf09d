"""Writes a run's checkpoints: all ranks together, in the background where asked, one at a time.

1. All ranks: plan who writes what, and (in the background only) copy it, so that training may continue.
2. Each rank: write its files, sync them, take their checksums.
3. All ranks: tell each other how it went. Rank 0: write state.json and the manifest, rename.
   In a run of an object store: each rank sends its files, then rank 0 the manifest.
4. All ranks: hear of it. Rank 0: what follows a checkpoint, pointers and the deletion of older ones.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...common.faultpoints import faultpoint
from ...common.retries import retried
from ...errors import PacelineError
from ...strategies.base import Strategy
from ...strategies.ranks.collectives import Attempt
from ...strategies.tensors.sharding import local_part
from ..utils.text import shown_size
from .files import commit
from .files import format as files
from .files.remote_run import RemoteRun
from .host_copy import HostCopy

if TYPE_CHECKING:
    from ...strategies.tensors.checkpoint_shards import Shard


@dataclass
class Content:
    """What a checkpoint is to hold.

    Attributes:
        tensors: By name, ``model.*`` and others; the same ones on several ranks are written once.
        state: Gives the text of state.json; called on rank 0.
        manifest: Plain JSON data that becomes part of the manifest.
    """

    tensors: dict[str, Tensor]
    state: Callable[[], str]
    manifest: dict[str, Any]


class Save:
    """A checkpoint that is being written, or was.

    Args:
        target: The folder to be.

    Attributes:
        target: The folder to be.
        error: Why it could not be written; the same on all ranks.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._lock, self._done = threading.Lock(), False
        self._followers: list[Callable[[], None]] = []

    @property
    def committed(self) -> bool:
        """Whether it is known to be written."""
        return self._done and self.error is None

    def run(self, work: Callable[[], None], background: bool) -> None:
        """Do the work, here or in a thread; what it raises becomes ``error``."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self.error = error
            with self._lock:
                self._done = True
            self._follow()

        if background:
            self._thread = threading.Thread(target=guarded, name="checkpoint", daemon=True)
            self._thread.start()
        else:
            guarded()

    def then(self, call: Callable[[], None]) -> None:
        """Call this when the checkpoint is there, in the thread that wrote it; never if it failed."""
        with self._lock:
            self._followers.append(call)
            done = self._done
        if done:
            self._follow()

    def _follow(self) -> None:
        with self._lock:
            followers, self._followers = self._followers, []
        if self.error is None:
            for call in followers:
                call()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is written, with what follows it, or has failed.

        Args:
            timeout: The most seconds; None: as long as it takes.
        """
        faultpoint("save.wait")
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None


class CheckpointWriter:
    """The one place where a run's checkpoints are written.

    Args:
        strategy: Of the run.
        remote: Where the run's checkpoints are sent to, if anywhere.
    """

    def __init__(self, strategy: Strategy, remote: RemoteRun | None = None) -> None:
        self._strategy, self._remote = strategy, remote
        self._on_rank_zero = strategy.collectives.on_rank_zero
        self._under_way: Save | None = None
        self._copy = HostCopy()

    def reserve(self, tensors: Iterable[Tensor]) -> None:
        """Prepare memory for the copies of background saves: new memory costs several times a copy."""
        self._copy.reserve(tensors)

    def find(self, target: Path) -> Save | None:
        """The save of ``target``, under way or done; None where there is none. On all ranks."""
        if self._under_way is not None and self._under_way.target == target:
            return self._under_way
        if not self._on_rank_zero(lambda: files.is_checkpoint(target)):
            return None
        found, remote = Save(target), self._remote
        if remote is not None and remote.holds(target):  # an earlier attempt to send it may have failed
            found.run(lambda: self._on_rank_zero(lambda: remote.send(target)), background=False)
        else:
            found.run(lambda: None, background=False)
        return found

    def write(self, target: Path, content: Content, background: bool, replace: bool = False) -> Save:
        """Write a checkpoint folder. To be called on all ranks; waits for the one under way.

        Args:
            target: The folder to be.
            content: What the checkpoint holds; the same kind on all ranks.
            background: Return as soon as a copy of the tensors is taken; a thread writes it.
            replace: Take the place of the one that exists, which is deleted afterwards.

        Raises:
            PacelineError: for content that cannot be written. Failures of writing are ``Save.error``.
        """
        self.wait()
        faultpoint("save.begin")
        save, ranks = Save(target), self._strategy.collectives
        text = ""

        def prepare() -> str | None:
            nonlocal text
            if retried(target.exists) and not replace:
                raise files.CheckpointError(
                    "a checkpoint is never overwritten", code="file-exists", where=str(target)
                )
            text = content.state()
            try:
                commit.begin(target)
            except OSError as error:
                return str(error)
            return None

        problem = self._on_rank_zero(prepare)
        if problem is not None:
            save.error = _not_written(target, problem)
            return save
        all_gather = ranks.exchange() if background else ranks.all_gather
        try:
            shard = self._collect(target, content, background)
        except BaseException:
            commit.remove(commit.staging_of(target))
            raise

        def write() -> dict[str, Any]:
            if background:
                self._copy.wait()
            return write_shard(target, shard)

        def work() -> None:
            try:
                written = _together(all_gather, target, write, shard.nbytes)
                entries = {name: entry for part in written for name, entry in part.items()}
                seal = (
                    partial(_seal, target, text, content.manifest, entries)
                    if ranks.is_global_zero
                    else dict
                )
                _together(all_gather, target, seal, len(text), shard.nbytes)
                if self._remote is not None and self._remote.holds(target):
                    _send(all_gather, ranks.is_global_zero, self._remote, target, written[ranks.rank])
            except BaseException:
                commit.remove(commit.staging_of(target))
                raise

        self._under_way = save
        save.run(work, background)
        return save

    def wait(self, timeout: float | None = None) -> Exception | None:
        """Wait for the checkpoint under way. Its error, which stays with it.

        Args:
            timeout: The most seconds; None: as long as it takes.
        """
        save, self._under_way = self._under_way, None
        if save is None:
            return None
        save.wait(timeout)
        return save.error

    def close(self, timeout: float | None = None) -> Exception | None:
        """``wait``, and free the copies."""
        error = self.wait(timeout)
        self._copy = HostCopy()
        return error

    def _collect(self, target: Path, content: Content, background: bool) -> Shard:
        folder = str(commit.staging_of(target))
        if not background:
            return self._strategy.weights.shard(folder, _unshared(content.tensors), _as_it_is)
        self._copy.begin()
        shard = self._strategy.weights.shard(folder, content.tensors, self._copy.take)
        self._copy.planned()
        return shard


def _as_it_is(name: str, tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


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
    local = local_part(tensor)
    return local.untyped_storage().data_ptr() if local.numel() else id(tensor)


def _together(
    all_gather: Callable[[Any], list[Any]],
    target: Path,
    work: Callable[[], Any],
    needed: int,
    written: int = 0,
) -> list[Any]:
    """Call ``work`` on each rank; what it returned on all of them, in the order of ranks.

    Args:
        all_gather: Of the process group of this thread.
        target: The checkpoint's folder to be, whose staging folder is deleted after a failure.
        work: Writes a part of the checkpoint.
        needed: The bytes ``work`` writes on this rank.
        written: The bytes this rank has written before.

    Raises:
        CheckpointError: on all ranks alike, when it failed on one.
    """

    def write() -> Any:
        if retried(lambda: shutil.disk_usage(target.parent).free) < needed:
            raise OSError(28, "No space left on device")
        return work()

    attempt = Attempt.of(write)
    problem = attempt.problem
    if problem is not None and not isinstance(attempt.error, PacelineError):
        problem = f"{type(attempt.error).__name__}: {problem}"
    everyone = all_gather((attempt.result, problem, needed + written))
    failed = [(rank, p) for rank, (_, p, _) in enumerate(everyone) if p is not None]
    if failed:
        rank, problem = failed[0]
        commit.remove(commit.staging_of(target))
        if len(everyone) > 1:
            problem = f"on rank {rank}: {problem}"
        total, free = sum(n for _, _, n in everyone), shutil.disk_usage(target.parent).free
        raise _not_written(target, f"{problem}; {shown_size(total)} needed, {shown_size(free)} free")
    return [result for result, _, _ in everyone]


def _send(
    all_gather: Callable[[Any], list[Any]], zero: bool, remote: RemoteRun, target: Path, mine: Iterable[str]
) -> None:
    """Send a checkpoint that is written here to the object store. To be called on all ranks.

    Args:
        all_gather: Of the process group of this thread.
        zero: Whether this is rank 0.
        remote: The run there.
        target: The checkpoint's folder.
        mine: The names of the files that this rank has written.

    Raises:
        CheckpointError: on all ranks alike, when it failed on one.
    """

    def agreed(work: Callable[[], Any]) -> Any:
        attempt = Attempt.of(work)
        everyone = all_gather((attempt.result, attempt.problem))
        for rank, (_, problem) in enumerate(everyone):
            if problem is not None:
                raise files.CheckpointError(
                    "the checkpoint could not be sent to the object store; it is on this machine",
                    code="checkpoint-not-saved",
                    where=str(target),
                    got=f"on rank {rank}: {' '.join(problem.split())}",
                )
        return everyone[0][0]

    place = agreed(lambda: remote.place_of(target) if zero else None)
    agreed(lambda: remote.send_files(target, place, mine))
    agreed(lambda: remote.commit(target, place) if zero else None)


def _not_written(target: Path, problem: str) -> files.CheckpointError:
    full = any(word in problem for word in ("space", "quota", "too large"))
    return files.CheckpointError(
        "saving the checkpoint failed; partial files were removed, earlier checkpoints are intact",
        code="checkpoint-not-saved",
        where=str(target),
        got=problem,
        fix="make room, or keep fewer of them: Checkpoint(keep=...)" if full else None,
    )


def write_shard(target: Path, shard: Shard) -> dict[str, Any]:
    """This rank's files in the staging folder of ``target``, synced; their entries in the manifest."""
    faultpoint("save.write")
    folder, entries = commit.staging_of(target), {}
    retried(partial(folder.mkdir, parents=True, exist_ok=True))  # one on each machine for an object store
    for kind in ("model", "optim"):
        names = [n for n in shard.tensors if n.startswith("model.") == (kind == "model")]
        if not names:
            continue
        path = folder / f"{kind}-{shard.number:05d}.safetensors"
        # What torch.distributed.checkpoint's reader of safetensors files wants to know of them.
        sharding = {name: {"saved_offsets": shard.offsets[name]} for name in names}
        about = {"DCP_SHARDING_INFO": json.dumps(sharding), "DCP_VERSION": "1.0", "format": "pt"}
        tensors = {name: shard.tensors[name] for name in names}

        def write(tensors: dict[str, Tensor] = tensors, path: Path = path, about: Any = about) -> Any:
            commit.save_tensors(tensors, path, about)
            with ThreadPoolExecutor(1) as pool, path.open("rb") as file:  # the disk works meanwhile
                synced = pool.submit(os.fsync, file.fileno())
                entry = files.entry_of(path)
                synced.result()
            return entry

        entries[path.name] = retried(write)
    return entries


def _seal(target: Path, state: str, manifest: dict[str, Any], entries: dict[str, Any]) -> None:
    faultpoint("save.seal")
    commit.write_synced(commit.staging_of(target) / files.STATE, state.encode())
    commit.commit(target, manifest, entries)
