"""The callbacks of a run: the user's, and the default ones that none of them replaces."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Callback
from .checkpoint import Checkpoint
from .curves import Curves
from .fast_dev_run import FastDevRun
from .loggers.json_lines import JSONLogger
from .loggers.logger import Logger
from .loggers.tensorboard import TensorBoard
from .profiler import Profiler
from .progress import Progress
from .step_record import StepRecord
from .summary import ModelSummary


def with_defaults(
    given: Sequence[Callback],
    progress: bool,
    loggers: bool | Sequence[Logger],
    checkpoint: bool,
    fast_dev_run: int,
    profile: bool | Profiler = False,
    record: bool = False,
) -> list[Callback]:
    """The user's callbacks, then the defaults; checkpoints last, when all others have changed their state.

    Args:
        given: The user's. One of a default's type replaces it.
        progress: Add the progress bar and the model summary.
        loggers: True adds metrics.jsonl, TensorBoard and the curves; else the loggers to add.
        checkpoint: Add a checkpoint at the end of each epoch.
        fast_dev_run: The steps after which the epoch ends, without loggers and checkpoints; 0: a usual run.
        record: Add a record of each step, for ``paceline diff``.
        profile: True adds a ``Profiler``; else the one to add, or False.
    """
    defaults: list[Callback] = []
    if progress:
        defaults += [Progress(), ModelSummary()]
    if profile:
        defaults.append(Profiler() if profile is True else profile)
    if fast_dev_run:
        defaults.append(FastDevRun(fast_dev_run))
    else:
        if loggers:
            defaults += [JSONLogger(), TensorBoard(), Curves()] if loggers is True else loggers
        if record:
            defaults.append(StepRecord())
        if checkpoint:
            defaults.append(Checkpoint())
    kept = [default for default in defaults if not any(isinstance(one, type(default)) for one in given)]
    return sorted([*given, *kept], key=lambda callback: isinstance(callback, Checkpoint))
