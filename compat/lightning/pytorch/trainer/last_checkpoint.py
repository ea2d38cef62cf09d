"""What a fit resumes from: a path, or with ``"last"`` and ``"hpc"`` what an earlier process has begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..... import PacelineError
from .....trainer.checkpoint.files import format as files
from .....trainer.run.directory import run_name
from .....trainer.run.numbering import runs_of_name
from ...translation.checkpoint_file import checkpoint_at, folder_of


def newest_file(callbacks: list[Any]) -> Path | None:
    """The newest ``last.ckpt`` in the folders that ``ModelCheckpoint(dirpath=...)`` names; else any file.

    Args:
        callbacks: All ``ModelCheckpoint`` callbacks.
    """
    found: list[tuple[bool, float, Path]] = []
    for one in callbacks:
        for path in Path(one.dirpath).glob("*" + one.FILE_EXTENSION) if one.has_folder else ():
            is_last = path.name.startswith(one.CHECKPOINT_NAME_LAST)
            found.append((is_last, path.stat().st_mtime, path))
    return max(found, default=(False, 0.0, None))[2]


def resumed_from(trainer: Any, given: Any, module: Any) -> tuple[Any, Any]:
    """The checkpoint that ``fit(ckpt_path=...)`` means, and what our loop is to resume from.

    Args:
        trainer: The trainer of this package.
        given: A path, a word or None.
        module: The module as our loop sees it.

    Raises:
        PacelineError: for what no run can resume from.
    """
    if given in ("last", "hpc"):
        return _continued(trainer, str(given), module)
    plugin = trainer.checkpoint_io
    is_path = given is not None and given != "best"
    if is_path and plugin is not None and folder_of(given) is None and not Path(given).is_dir():
        raise PacelineError(
            f"a run resumes from a checkpoint's folder, and what {type(plugin).__name__} wrote names none",
            code="cannot-resume",
            where=str(given),
            fix='ckpt_path="last"; or a folder of checkpoints/ in the run folder',
        )
    return given, checkpoint_at(given, resume=True)


def _continued(trainer: Any, word: str, module: Any) -> tuple[Any, Any]:
    """What a fit continues from: the checkpoint, and what our loop is to resume from.

    A run whose files are in a ``dirpath`` continues from there, as under Lightning; without a ``dirpath``,
    the newest run of this module does.

    Args:
        trainer: The trainer of this package.
        word: ``"last"`` or ``"hpc"``.
        module: The module as our loop sees it.

    Returns:
        Both None where there is nothing yet.

    Raises:
        PacelineError: for ``"hpc"`` without a run, and for a file that no run can resume from.
    """
    if "://" in trainer.default_root_dir:
        return None, "auto"
    runs = Path(trainer.default_root_dir, "lightning_logs", run_name(None, module))
    newest = next((one for one in runs_of_name(runs) if files.finished(one / "checkpoints")), None)
    if word == "hpc":
        if newest is None:
            raise PacelineError(
                'ckpt_path="hpc" continues the run that its job has begun, and there is none',
                code="cannot-resume",
                where=str(runs),
                fix='ckpt_path="last" begins where there is none',
            )
        return _latest(newest), "auto"
    if not any(one.has_folder for one in trainer.checkpoint_callbacks):
        return (None if newest is None else _latest(newest)), "auto"
    path = newest_file(trainer.checkpoint_callbacks)
    if trainer.checkpoint_io is not None and (path is None or folder_of(path) is None):
        return (None if newest is None else _latest(newest)), "auto"  # in a form of the plugin's own
    if path is None:
        folders = ", ".join(str(one.dirpath) for one in trainer.checkpoint_callbacks)
        trainer.session.lines.append(f'ckpt_path="last": no checkpoint in {folders}; the run begins')
        return None, None
    folder = checkpoint_at(path, resume=True)
    is_newest = newest is not None and Path(folder).parents[1].resolve() == newest.resolve()
    return path, "auto" if is_newest else folder


def _latest(run: Path) -> Path:
    return files.finished(run / "checkpoints")[-1]
