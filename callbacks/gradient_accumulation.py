"""Gradient accumulation that changes over the epochs of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import PacelineError
from .base import Callback


class GradientAccumulationScheduler(Callback):
    """Accumulates another number of micro-batches in a step from certain epochs on.

    ``trainer.total_steps`` counts the steps of all epochs. A resumed run has the micro-batches of its
    epoch; on another number of ranks it keeps the samples of each step. Not for a run with ``accumulate``
    or ``global_batch_size``, nor for manual optimization.

    Args:
        scheduling: By epoch, from 0, the micro-batches in a step from that epoch on; 1 before the first.

    Raises:
        PacelineError: for anything else.

    Example:
        >>> growing = GradientAccumulationScheduler({0: 1, 1: 2})
        >>> trainer = Trainer(max_epochs=2, callbacks=growing, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)  # 4 batches an epoch
        >>> trainer.global_step
        6
    """

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        if not isinstance(scheduling, Mapping) or not scheduling or not _counts(scheduling):
            raise PacelineError(
                "GradientAccumulationScheduler takes micro-batches by epoch",
                got=scheduling,
                allowed="epochs from 0 with counts of at least 1, such as {0: 1, 5: 4}",
            )
        self.scheduling = dict(sorted(scheduling.items()))

    def at(self, epoch: int) -> int:
        """The micro-batches in a step of an epoch.

        Args:
            epoch: From 0.
        """
        return next((n for first, n in reversed(self.scheduling.items()) if first <= epoch), 1)


def _counts(scheduling: Mapping[Any, Any]) -> bool:
    numbers = [*scheduling, *scheduling.values()]
    return all(type(n) is int for n in numbers) and min(scheduling) >= 0 < min(scheduling.values())
