"""The experiment of Ray Train that a process is a worker of.

Ray makes the process group, starts all workers again after a failure, and has them find the experiment by
its name. Its workers train in a thread, so that no signal is handled there.

Source: https://docs.ray.io/en/latest/train/user-guides/fault-tolerance.html
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import PacelineError


@dataclass(frozen=True)
class RayExperiment:
    """An experiment of Ray Train, which keeps its name when Ray starts its workers again.

    Args:
        storage: Where Ray keeps its files: ``RunConfig(storage_path=..., name=...)``.
        is_folder: Whether that is a folder of this machine, and no object store.

    Example:
        >>> RayExperiment("/shared/ray/digits").place(Path("runs").absolute()).as_posix()
        '/shared/ray/digits/runs'
    """

    storage: str
    is_folder: bool = True

    @property
    def name(self) -> str:
        """What names the experiment in files."""
        return f"ray/{self.storage}"

    @property
    def may_have_run(self) -> bool:
        """Always: Ray does not say how often it has started the workers."""
        return True

    @property
    def has_programs(self) -> bool:
        """It has one training function."""
        return False

    @property
    def restart(self) -> str:
        """Not known."""
        return ""

    def place(self, folder: Path) -> Path:
        """Where runs are: for a relative path in the experiment's folder, and not where the worker runs.

        That one is temporary, and other machines do not have it.

        Raises:
            PacelineError: for a relative path where the experiment has no folder.
        """
        here = Path.cwd()
        if not folder.is_relative_to(here):
            return folder
        if self.is_folder:
            return Path(self.storage, folder.relative_to(here))
        raise PacelineError(
            "run_dir: it is in a temporary folder of this Ray worker, which the next start will not find",
            got=folder,
            fix="the path of a folder that all machines share, or an address such as s3://bucket/runs",
        )

    def requeue_after(self, number: int, has_trained: bool) -> str:
        """Nothing: Ray starts its workers again by itself."""
        return ""


def current_experiment() -> RayExperiment | None:
    """The experiment that this process is a worker of; None outside of Ray Train.

    Example:
        >>> current_experiment() is None
        True
    """
    ray_train = sys.modules.get("ray.train")
    if ray_train is None:
        return None
    try:
        storage = ray_train.get_context().get_storage()
    except (RuntimeError, NotImplementedError):  # the driver's process; training without a cluster
        return None
    if storage is None:
        return None
    is_folder = storage.storage_filesystem.type_name == "local"
    return RayExperiment(storage.experiment_fs_path, is_folder)
