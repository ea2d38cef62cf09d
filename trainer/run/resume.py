"""Which checkpoint a run is resumed from; damaged ones are set aside where there is a choice."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import PacelineError
from ...strategies.launch.job_notes import interrupted_run
from ...strategies.ranks.collectives import Collectives
from ..checkpoint.external_weights import is_readable
from ..checkpoint.files import commit
from ..checkpoint.files import format as files
from ..checkpoint.files.integrity import begin, set_aside
from ..checkpoint.files.locate import find_checkpoint
from ..checkpoint.files.reading import read_manifest
from ..checkpoint.files.remote_run import RemoteRun, complete
from ..utils.paths import as_path
from .directory import RunDirectory
from .lock import FolderLock
from .numbering import runs_of_name
from .requeued import requeued_runs
from .run import Run

_LOCK_SECONDS = 60


class ResumeSearch:
    """Looks for checkpoints. All ranks do together; rank 0 looks at the files.

    Args:
        directory: Holds the lock of the run that is resumed, and takes lines for the log.
        module_name: For messages.
    """

    def __init__(
        self,
        ranks: Collectives,
        directory: RunDirectory,
        module_name: str,
    ) -> None:
        self._ranks, self._directory = ranks, directory
        self._runs = directory.runs
        self._module_name = module_name
        self._fetched_again: set[Path] = set()
        self._skipped: set[Path] = set()

    def find_restart(self, fit: int, identity: dict[str, Any]) -> Path | None:
        """The newest checkpoint of the run that this process's job had under way; None where there is none.

        The job's ranks were started again after a failure, or the job was put back into its queue.

        Args:
            fit: Which ``fit`` of the script this is, from 1.
            identity: What ``requeued.identity`` returned.
        """
        found = self._ranks.all_gather(interrupted_run(fit))  # a machine that has joined knows of none
        run = next(filter(None, found), None)
        if run is None:
            run = self._ranks.on_rank_zero(lambda: self._requeued_run(identity))
        return None if run is None else self._newest_of(run)

    def _requeued_run(self, identity: dict[str, Any]) -> Path | None:
        """The newest one with a checkpoint. Its lock may outlive a machine that failed, for a while.

        Raises:
            PacelineError: naming the host and process that hold it.
        """
        found = () if self._runs is None else requeued_runs(self._runs, identity)
        run = next((one for one in found if files.finished(one / "checkpoints")), None)
        deadline = time.monotonic() + _LOCK_SECONDS
        while run is not None:
            try:
                self._directory.lock_here(run)
                return run
            except PacelineError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(1)
        return None

    def find(self, resume: str | Path) -> Path | None:
        """The checkpoint that ``fit(resume=...)`` means; None for ``"auto"`` where there is none.

        The folder of a run that ``"latest"`` and ``"auto"`` look into is locked. What is visible without
        reading the tensors is verified here; reading it verifies the rest.

        Raises:
            PacelineError: for ``"latest"`` and ``"best"`` without a checkpoint, for a path that is none,
                and for a run that another process has open.
            CheckpointError: for one whose manifest is damaged; ``"latest"`` and ``"auto"`` take the one
                before.
        """
        if not isinstance(resume, (str, os.PathLike)):
            raise PacelineError(
                "fit(resume=...) names what to resume from",
                code="invalid-value",
                got=resume,
                allowed="'auto', 'latest', 'best', or the path of a checkpoint or run",
            )
        words = ("auto", "latest", "best")
        if resume not in words:
            path = as_path(resume, "fit(resume=...)", remote=True)
            if is_readable(path) and not files.is_checkpoint(path):
                raise self._only_weights(path)
            return self._with_state(self._ranks.on_rank_zero(lambda: find_checkpoint(resume, words=words)))
        runs = self._ranks.on_rank_zero(self._newest_runs_first)
        found: Path | None = None
        if resume in ("latest", "auto"):
            found = next(filter(None, map(self._newest_of, runs)), None)
            if found is not None or resume == "auto":
                return found
        else:
            found = self._ranks.on_rank_zero(lambda: _newest_best(runs))
        if found is None:
            raise PacelineError(
                f"resume={resume!r}: there is no checkpoint to resume from",
                code="checkpoint-not-found",
                where=str(self._runs),
                fix='resume="auto" starts fresh where there is none',
            )
        return self._with_state(found)

    def _with_state(self, found: Path) -> Path:
        complete(found)
        if read_manifest(found)["weights_only"]:
            raise self._only_weights(found)
        return found

    def catch_up(self, checkpoint: Path) -> None:
        """Before a run of an object store continues: what killed processes have left undone there."""
        remote = RemoteRun.of(checkpoint.parent.parent)
        if remote is not None:
            self._ranks.on_rank_zero(lambda: remote.catch_up(checkpoint))

    def pass_over(self, folder: Path, damage: files.CheckpointError) -> None:
        """Set a damaged checkpoint aside; the copy of one in an object store is fetched again first."""
        remote, problem = RemoteRun.of(folder.parent.parent), " ".join(str(damage).split())
        if remote is not None and folder not in self._fetched_again:
            self._fetched_again.add(folder)
            if self._ranks.on_rank_zero(lambda: remote.has(folder.name)):
                self._directory.log_line(f"fetching a damaged checkpoint again: {problem}")
                if self._ranks.environment.local_rank == 0:
                    commit.delete(folder)
                self._ranks.barrier()
                self._ranks.on_rank_zero(lambda: remote.pull(to_write=True))
                return
        self._directory.log_line(f"skipped a damaged checkpoint: {problem}")
        self._ranks.on_rank_zero(lambda: set_aside(folder))
        self._skipped.add(folder)  # the store keeps it

    def _newest_runs_first(self) -> list[Path]:
        return [] if self._runs is None else runs_of_name(self._runs)

    def _newest_of(self, run: Path) -> Path | None:
        """The newest checkpoint of a run that is as it was written; None where there is none."""
        remote = RemoteRun.of(run)
        if remote is not None and self._ranks.on_rank_zero(remote.has_any):
            run.mkdir(parents=True, exist_ok=True)
            self._directory.lock(run)
            self._ranks.on_rank_zero(lambda: remote.pull(to_write=True))
        if not self._ranks.on_rank_zero(lambda: files.finished(run / "checkpoints")):
            if self._ranks.is_global_zero and commit.has_junk(run / "checkpoints"):
                _sweep(run)
            return None
        self._directory.lock(run)
        self._ranks.on_rank_zero(lambda: commit.recover(run / "checkpoints"))
        while found := self._ranks.on_rank_zero(lambda: self._candidates(run)):
            try:
                with begin(found[-1], self._ranks):
                    return found[-1]
            except files.CheckpointError as damage:
                self.pass_over(found[-1], damage)
        return None

    def _candidates(self, run: Path) -> list[Path]:
        return [path for path in files.finished(run / "checkpoints") if path not in self._skipped]

    def _only_weights(self, path: Path) -> PacelineError:
        return PacelineError(
            "a run cannot be resumed from weights alone",
            code="cannot-resume",
            where=str(path),
            fix=f"module = {self._module_name}.load_from_checkpoint({str(path)!r}), and fit(module, ...) "
            "without resume",
        )


def _sweep(run: Path) -> None:
    """Remove what a run left that ended inside its first checkpoint, unless it is still running."""
    lock = FolderLock()
    with suppress(PacelineError, OSError):
        lock.take(run)
        commit.sweep(run / "checkpoints")
    lock.release()


def _newest_best(runs: list[Path]) -> Path | None:
    for remote in filter(None, map(RemoteRun.of, runs)):
        remote.pull(to_write=False)
    bests = (Run(run).best for run in runs if (run / "config.yaml").is_file())
    return next((best for best in bests if best is not None), None)
