"""A global batch size that changes over the epochs of a run."""

from __future__ import annotations

from .epoch_schedule import EpochSchedule


class BatchSizeScheduler(EpochSchedule):
    """Takes another number of samples in a step, over all ranks, from certain epochs on.

    The loader's batch size stays the most samples that a rank takes at once: a larger step has more
    micro-batches. ``trainer.total_steps`` counts the steps of all epochs; the learning rate is yours to
    change with the batch size. A resumed run has the batch size of its epoch, on any number of ranks. Not
    for a run with ``accumulate`` or ``global_batch_size``, nor for manual optimization.

    Args:
        scheduling: By epoch, from 0, the samples in a step from that epoch on; before the first the
            loader's batch size x ranks.

    Raises:
        PacelineError: for anything else.

    Example:
        >>> growing = BatchSizeScheduler({1: 8})
        >>> trainer = Trainer(max_epochs=2, callbacks=growing, progress=False, run_dir=None)
        >>> run = trainer.fit(Net(), train_loader)  # 4 batches of 4 samples an epoch
        >>> trainer.global_step
        6
    """

    counted = "samples in a step"
    excludes = {"accumulate": 1, "global_batch_size": None}
