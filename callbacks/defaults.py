"""The callbacks of a run: the user's, and the default ones that none of them replaces."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Callback
from .checkpoint import Checkpoint
from .checks import Checks
from .fast_dev_run import FastDevRun
from .loggers.json_lines import JSONLogger
from .loggers.kubeflow import KubeflowStatus, is_in_train_job
from .loggers.logger import Logger
from .loggers.ray_report import RayReport, is_in_ray_worker
from .loggers.tensorboard import TensorBoard
from .monitors.profiler import Profiler
from .monitors.step_record import StepRecord
from .pictures.curves import Curves
from .progress import Progress
from .summary import ModelSummary

LOGGERS: dict[str, type[Callback]] = {
    "jsonl": JSONLogger,
    "tensorboard": TensorBoard,
    "curves": Curves,
    "kubeflow": KubeflowStatus,
    "ray": RayReport,
}
"""What ``Trainer(loggers=...)`` writes by default, by the names that switch one off with a "-" in front.

``kubeflow`` is added in a TrainJob alone, ``ray`` in a worker of Ray Train.
"""


def with_defaults(
    given: Sequence[Callback],
    progress: bool,
    loggers: bool | Sequence[Logger | str],
    checkpoint: bool,
    fast_dev_run: int,
    profile: bool | Profiler = False,
    record: bool = False,
) -> list[Callback]:
    """The user's callbacks, then the defaults; checkpoints last, when all others have changed their state.

    Args:
        given: The user's. One of a default's type replaces it.
        progress: Add the progress bar and the model summary.
        loggers: True adds metrics.jsonl, TensorBoard and the curves, False nothing. Of a sequence, loggers
            are added to those (in place of one of their type), and ``"-tensorboard"`` leaves that one out.
        checkpoint: Add a checkpoint at the end of each epoch.
        fast_dev_run: The steps after which the epoch ends, without loggers and checkpoints; 0: a usual run.
        record: Add a record of each step, for ``paceline diff``.
        profile: True adds a ``Profiler``; else the one to add, or False.
    """
    defaults: list[Callback] = [Checks()]
    if progress:
        defaults += [Progress(), ModelSummary()]
    if profile:
        defaults.append(Profiler() if profile is True else profile)
    if fast_dev_run:
        defaults.append(FastDevRun(fast_dev_run))
    else:
        if loggers is not False:
            defaults += _loggers(() if loggers is True else loggers)
        if record:
            defaults.append(StepRecord())
        if checkpoint:
            defaults.append(Checkpoint())
    kept = [default for default in defaults if not any(isinstance(one, type(default)) for one in given)]
    return sorted([*given, *kept], key=lambda callback: isinstance(callback, Checkpoint))


def _loggers(given: Sequence[Logger | str]) -> list[Callback]:
    own = [one for one in given if not isinstance(one, str)]
    off = [cls for name, cls in LOGGERS.items() if f"-{name}" in given]
    off += [cls for cls in LOGGERS.values() if any(isinstance(one, cls) for one in own)]
    off += [] if is_in_train_job() else [KubeflowStatus]
    off += [] if is_in_ray_worker() else [RayReport]
    kept = [cls() for cls in LOGGERS.values() if cls not in off]
    return [*own, *kept]
