"""Gradient accumulation that changes over the epochs of a run."""

from __future__ import annotations

from .epoch_schedule import EpochSchedule


class GradientAccumulationScheduler(EpochSchedule):
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

    counted = "micro-batches"
    excludes = {"accumulate": 1, "global_batch_size": None}

    def at(self, epoch: int) -> int:
        """The micro-batches in a step of an epoch.

        Args:
            epoch: From 0.
        """
        return super().at(epoch) or 1
