"""What the feeds of a stage need to know, out of the Trainer's arguments."""

from __future__ import annotations

from dataclasses import replace

from ...errors import PacelineError
from ..data.device_transfer import HookedTransfer, batch_hooks_of, make_transfer
from ..data.feed import FeedSettings
from ..phases import PHASES
from .context import StageContext


class FeedRequest:
    """Makes the settings of the feeds of a stage."""

    def __init__(self, context: StageContext) -> None:
        arguments, strategy = context.settings, context.strategy
        self._arguments, self._stage = arguments, context.name
        if context.ranks.tensor_parallel_size > 1 and arguments.on_data_error.startswith("skip"):
            raise PacelineError(
                "ranks that split each layer compute with the same samples, and one that cannot be read "
                "would be skipped by one of them alone",
                code="skip-not-possible",
                got=f"on_data_error={arguments.on_data_error!r}",
                allowed="raise, retry",
            )
        device, dtype = strategy.device, strategy.precision.input_dtype
        transfer = make_transfer(device, dtype, arguments.channels_last)
        hooks = batch_hooks_of(context.datamodule, context.module)
        self._common = FeedSettings(
            seed=arguments.seed,
            ranks=context.ranks,
            on_error=arguments.on_data_error,
            transfer=transfer,
            hooked_transfer=HookedTransfer(hooks, transfer, device, dtype) if hooks else None,
            signals=context.signals,
            log_line=context.directory.log_line,
        )

    def for_training(self, accumulate: int, global_batch: int | None = None) -> FeedSettings:
        """For ``fit``.

        Args:
            accumulate: Micro-batches of a rank in a step.
            global_batch: Samples in a step, over all ranks; None: they follow from the micro-batches.
        """
        arguments = self._arguments
        return replace(
            self._common,
            accumulate=accumulate,
            simulated_ranks=self._common.ranks.simulated_ranks,
            global_batch=global_batch,
            limit=arguments.overfit_batches or arguments.limit_train_batches,
            # Without a global batch size a step grows with the ranks, and an epoch of so many with it.
            limit_per_rank=global_batch is None,
            fixed_order=bool(arguments.overfit_batches),
        )

    def for_evaluation(self, stage: str) -> FeedSettings:
        """For ``validate`` (inside ``fit`` too), ``test`` and ``predict``: micro-batches one by one."""
        arguments = self._arguments
        overfit = arguments.overfit_batches if self._stage == "fit" else 0
        limit = (
            int(arguments.fast_dev_run) or overfit or getattr(arguments, f"limit_{PHASES[stage]}_batches")
        )
        policy = arguments.on_data_error
        if stage == "predict" and policy.startswith("skip"):
            policy = "retry"  # no prediction is skipped: they are in the order of the data
        return replace(self._common, limit=limit, on_error=policy, fixed_order=True)
