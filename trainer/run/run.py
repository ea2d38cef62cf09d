"""A finished or running run, read from its folder."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ...callbacks.jsonl import read_rows
from ...errors import PacelineError, nearest
from ...strategies.launch.job_notes import interrupted_run
from ..checkpoint import format as files
from ..checkpoint.external_weights import is_readable
from ..checkpoint.integrity import begin, set_aside
from .directory import numbered
from .lock import FolderLock

if TYPE_CHECKING:
    from ..session import Session


class Series(NamedTuple):
    """One value over a run."""

    steps: list[int]
    values: list[float]


class Run:
    """What ``fit`` returns, and ``paceline.Run(folder)`` opens.

    Args:
        folder: ``runs/<name>/<n>``; None for a ``fast_dev_run``, which wrote nothing.

    Raises:
        PacelineError: when there is no run in the folder.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None and not (self._folder / "config.yaml").is_file():
            raise PacelineError("there is no run in this folder", where=str(self._folder))

    def __repr__(self) -> str:
        return f"Run({str(self._folder)!r})"

    @property
    def folder(self) -> Path:
        """The run folder.

        Raises:
            PacelineError: for a run that wrote nothing.
        """
        if self._folder is None:
            raise PacelineError("a fast_dev_run writes nothing, so there is nothing to read")
        return self._folder

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.yaml."""
        found: dict[str, Any] = yaml.safe_load((self.folder / "config.yaml").read_text())
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """metrics.jsonl, line by line; ``"nan"`` is NaN again."""
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return []
        rows = read_rows(path)
        return [{k: float(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]

    @property
    def metrics(self) -> Metrics:
        """Each value over the run: ``run.metrics["val/accuracy"].values[-1]``."""
        series = Metrics()
        for row in self.rows:
            for name, value in row.items():
                if name not in ("step", "epoch", "time", "samples"):
                    one = series.setdefault(name, Series([], []))
                    one.steps.append(int(row["step"]))
                    one.values.append(value)
        return series

    @property
    def checkpoints(self) -> list[Path]:
        """The finished checkpoints a run can go on from, oldest first."""
        return files.finished(self.folder / "checkpoints")

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def best(self) -> Path | None:
        """The best checkpoint, where a Checkpoint callback monitored a value."""
        return files.read_pointer(self.folder / "checkpoints" / "best")

    def load(self, which: str = "best", **arguments: Any) -> Any:
        """The trained module, built and loaded from the best (else the latest) checkpoint.

        Args:
            which: ``"best"`` or ``"latest"``.
            arguments: Constructor arguments that are no plain data.

        Raises:
            PacelineError: when there is no checkpoint, or the module's class cannot be imported.
        """
        if which == "best":
            folder = find_checkpoint(self.folder, weights=True)
        elif self.latest is not None:
            folder = self.latest
        else:
            raise PacelineError("the run has no checkpoint", where=str(self.folder))
        name = files.read_manifest(folder)["module"]["class"]
        where, _, qualified = name.partition(":")
        found: Any = sys.modules.get(where) or importlib.import_module(where)
        for part in qualified.split("."):
            found = getattr(found, part, None)
        if found is None:
            raise PacelineError(
                f"the module's class {name} cannot be imported here",
                fix=f"import it and call {qualified}.load_from_checkpoint({str(folder)!r})",
            )
        return found.load_from_checkpoint(folder, **arguments)


class Metrics(dict[str, Series]):
    """Series by full name; a wrong name is answered with the nearest one."""

    def __missing__(self, name: str) -> Series:
        raise PacelineError(
            f"the run has no value {name!r}",
            allowed=", ".join(self) or "nothing was logged",
            meant=nearest(name, self),
        )


def find_checkpoint(path: Any, weights: bool = False) -> Path:
    """The checkpoint folder that ``path`` is, or the best, else latest, of the run folder it is.

    Args:
        weights: One of weights only will do.

    Raises:
        PacelineError: when it is neither.
    """
    folder = Path(path)
    if files.is_checkpoint(folder):
        return folder
    if (folder / "config.yaml").is_file():
        run = Run(folder)
        best = run.best
        if best is not None and not weights and best.name.startswith(files.WEIGHTS):
            best = None
        found = best or run.latest
        if found is None and weights:
            found = next(reversed(files.finished(folder / "checkpoints", files.WEIGHTS)), None)
        if found is not None:
            return found
    raise PacelineError(
        "there is no checkpoint at this path"
        + ("" if folder.exists() else ", and nothing else: it does not exist"),
        where=str(folder),
        allowed="a folder with manifest.json, or a run folder with checkpoints",
    )


def find_restart(trainer: Session, fit: int) -> Path | None:
    """The newest checkpoint of the run in which the attempt before failed; None where there is none.

    Args:
        fit: Which ``fit`` of the script this is, from 1.
    """
    run = trainer.on_rank_zero(lambda: interrupted_run(fit))
    return None if run is None else _newest_of(trainer, run)


def find_resume(trainer: Session, resume: str | Path) -> Path | None:
    """The checkpoint that ``fit(resume=...)`` means; None for ``"auto"`` where there is none.

    The folder of a run that ``"latest"`` and ``"auto"`` look into is locked. What shows without reading
    the tensors is compared there; reading it compares the rest. To be called on all ranks.

    Raises:
        PacelineError: for ``"latest"`` and ``"best"`` without a checkpoint, for a path that is none, and
            for a run that another process has under way.
        CheckpointError: for one whose manifest is damaged; ``"latest"`` and ``"auto"`` take the one before.
    """
    if not isinstance(resume, (str, Path)):
        raise PacelineError(
            "fit(resume=...) says where to go on from",
            got=resume,
            allowed="'auto', 'latest', 'best', or the path of a checkpoint or run",
        )
    chosen = resume in ("auto", "latest", "best") or files.is_checkpoint(Path(resume))
    if not chosen and is_readable(Path(resume)):
        raise _only_weights(Path(resume), trainer)
    parent = Path(trainer.settings.run_dir) / trainer.name
    runs = trainer.on_rank_zero(lambda: [folder for _, folder in reversed(numbered(parent))])
    found: Path | None = None
    if resume in ("latest", "auto"):
        for run in runs:
            found = _newest_of(trainer, run)
            if found is not None:
                return found
        if resume == "auto":
            return None
    elif resume == "best":
        found = trainer.on_rank_zero(lambda: _newest_best(runs))
    else:
        found = trainer.on_rank_zero(lambda: find_checkpoint(resume))
    if found is None:
        raise PacelineError(
            f"resume={resume!r}: there is no checkpoint to resume from",
            where=str(parent),
            fix='resume="auto" starts fresh where there is none',
        )
    if files.read_manifest(found)["weights_only"]:
        raise _only_weights(found, trainer)
    return found


def _only_weights(path: Path, trainer: Session) -> PacelineError:
    name = type(trainer.module).__name__
    return PacelineError(
        "a run cannot go on from weights alone",
        where=str(path),
        fix=f"module = {name}.load_from_checkpoint({str(path)!r}), and fit(module, ...) without resume",
    )


def _newest_of(trainer: Session, run: Path) -> Path | None:
    """The newest checkpoint of a run that is as it was written; none is looked for where there is none."""
    if not trainer.on_rank_zero(lambda: files.finished(run / "checkpoints")):
        if trainer.is_global_zero and files.has_junk(run / "checkpoints"):
            _sweep(run)
        return None
    trainer.on_rank_zero(lambda: trainer.lock.take(run))
    for folder in trainer.on_rank_zero(lambda: files.finished(run / "checkpoints")[::-1]):
        try:
            with begin(folder, trainer.strategy):
                return folder
        except files.CheckpointError as damage:
            pass_over(trainer, folder, damage)
    return None


def _sweep(run: Path) -> None:
    """Remove what a run left that ended inside its first checkpoint; one that is under way is let be."""
    lock = FolderLock()
    with suppress(PacelineError, OSError):
        lock.take(run)
        files.sweep(run / "checkpoints")
    lock.release()


def pass_over(trainer: Session, folder: Path, damage: files.CheckpointError) -> None:
    """Say that a checkpoint is damaged, and set it aside."""
    trainer.say(f"skipped a damaged checkpoint: {' '.join(str(damage).split())}")
    trainer.on_rank_zero(lambda: set_aside(folder))


def _newest_best(runs: list[Path]) -> Path | None:
    bests = (Run(run).best for run in runs if (run / "config.yaml").is_file())
    return next((best for best in bests if best is not None), None)
