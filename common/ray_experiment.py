"""The experiment of Ray Train that a process is a worker of.

Ray makes the process group, starts all workers again after a failure, and has them find the experiment by
its name. Its workers train in a thread, so that no signal is handled there.

Source: https://docs.ray.io/en/latest/train/user-guides/fault-tolerance.html
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..errors import PacelineError

POINTER = "paceline.json"
"""Names a run and its newest checkpoint, in the folders that Ray keeps as checkpoints."""


@dataclass(frozen=True)
class RayExperiment:
    """An experiment of Ray Train, which keeps its name when Ray starts its workers again.

    Args:
        storage: Where Ray keeps its files: ``RunConfig(storage_path=..., name=...)``.
        temporary: Where this worker runs: a folder of Ray's session.
        workers: The number of workers.
        file_system: The kind of file system that ``storage`` is a path of.

    Example:
        >>> experiment = RayExperiment("/shared/ray/digits", Path("/tmp/ray/session"), workers=2)
        >>> experiment.place(Path("/tmp/ray/session/runs")).as_posix()
        '/shared/ray/digits/runs'
    """

    storage: str
    temporary: Path
    workers: int
    file_system: str = "local"

    @property
    def name(self) -> str:
        """What names the experiment in files."""
        return f"ray/{self.file_system}/{self.storage}"

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
        if not folder.is_relative_to(self.temporary):
            return folder
        if self.file_system == "local":
            return Path(self.storage, folder.relative_to(self.temporary))
        raise PacelineError(
            "run_dir: it is in a temporary folder of this Ray worker, which the next start will not find",
            code="ray-worker",
            got=folder,
            fix="a folder that all machines share, an address such as s3://bucket/runs, or None",
        )

    def check_world(self, size: int) -> None:
        """See that the process group has Ray's workers.

        Raises:
            PacelineError: for workers that do not know of each other.
        """
        if size != self.workers:
            raise PacelineError(
                "the workers of Ray Train have no process group, so each would train by itself",
                code="ray-worker",
                got=f"{self.workers} workers, a world of {size}",
                fix="ray.train.torch.TorchTrainer makes one",
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
        context = ray_train.get_context()
        storage = context.get_storage()
    except (RuntimeError, NotImplementedError, DeprecationWarning):  # the driver, local mode, Ray Tune
        return None
    if storage is None:
        return None
    return RayExperiment(
        storage.experiment_fs_path,
        Path(storage.local_working_directory),
        context.get_world_size(),
        storage.storage_filesystem.type_name,
    )
