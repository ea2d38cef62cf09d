"""What the feeds of a stage need to know, out of the Trainer's arguments."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import PacelineError
from ...strategies import Strategy
from ...strategies.layers.tensor_parallel import is_compared
from ...strategies.ranks.comparison import same_everywhere, same_in_tensor_groups
from ..data.device_transfer import HookedTransfer, batch_hooks_of, make_transfer
from ..data.feed import FeedSettings
from ..phases import PHASES
from ..utils.nested import checksum
from .context import StageContext


class FeedRequest:
    """Makes the settings of the feeds of a stage."""

    def __init__(self, context: StageContext) -> None:
        arguments, strategy = context.settings, context.strategy
        environment = strategy.environment
        self._arguments, self._stage = arguments, context.name
        if strategy.tensor_parallel_size > 1 and arguments.on_data_error.startswith("skip"):
            raise PacelineError(
                "ranks that split each layer compute with the same samples, and one that cannot be read "
                "would be skipped by one of them alone",
                got=f"on_data_error={arguments.on_data_error!r}",
                allowed="raise, retry",
            )
        self._simulated_ranks = strategy.simulated_ranks
        device, dtype = environment.device, strategy.precision.input_dtype
        transfer = make_transfer(device, dtype, arguments.channels_last)
        hooks = batch_hooks_of(context.datamodule, context.module)
        self._common = FeedSettings(
            seed=arguments.seed,
            rank=strategy.data_rank,
            world_size=strategy.data_world_size,
            compares=environment.world_size > 1,
            on_error=arguments.on_data_error,
            transfer=transfer,
            hooked_transfer=HookedTransfer(hooks, transfer, device, dtype) if hooks else None,
            signals=context.signals,
            log_line=context.directory.log_line,
            all_gather=partial(gather_alike, strategy),
            highest=lambda numbers: strategy.all_reduce(numbers, "max"),
            total=partial(total_read, strategy),
            same_everywhere=partial(same_everywhere, strategy),
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
            simulated_ranks=self._simulated_ranks,
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


def gather_alike(strategy: Strategy, value: Any) -> list[Any]:
    """What each data rank has read, in their order. To be called on all ranks.

    Args:
        strategy: Carries the values.
        value: The same on all ranks that compute with the same samples.

    Raises:
        PacelineError: on all ranks, where it is not.
    """
    everyone = strategy.all_gather(value)
    found = strategy.one_per_data_rank(everyone)
    size = strategy.tensor_parallel_size
    for rank, other in enumerate(everyone):
        if other != found[rank // size]:
            raise PacelineError(
                f"ranks {rank - rank % size} and {rank} split each layer between them, and read other data",
                fix="give both the same data: divide it by data_rank and data_world_size of trainer.ranks, "
                "not by rank and world size, and draw from torch, random or numpy, which are seeded",
            )
    return found


def require_alike(strategy: Strategy, value: Any) -> None:
    """See that ranks that split each layer have read the same. To be called on all ranks.

    Args:
        strategy: Carries the values.
        value: Of this rank; plain data.

    Raises:
        PacelineError: on all ranks, naming two that have not.
    """
    if not same_in_tensor_groups(strategy, value):
        gather_alike(strategy, value)


def total_read(strategy: Strategy, numbers: Tensor) -> Tensor:
    """What all data ranks have read together. To be called on all ranks.

    Args:
        strategy: Carries the values.
        numbers: Counts of this rank, of one shape on all.

    Raises:
        PacelineError: on all ranks, where ranks that split each layer have read other data.
    """
    require_alike(strategy, numbers.tolist())
    return strategy.all_reduce(numbers if strategy.tensor_rank == 0 else torch.zeros_like(numbers))


class SameSamples:
    """Ranks that split each layer must compute with the same samples.

    Called before each step, on all ranks: compares the batches of the first 16, then of ever fewer.

    Args:
        strategy: Of the run.

    Raises:
        PacelineError: on all ranks, naming two that have other batches.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy, self._steps = strategy, 0

    def __call__(self, trainer: Any, batches: list[Any]) -> None:
        self._steps += 1
        if is_compared(self._steps):
            require_alike(self._strategy, [checksum(batch) for batch in batches])
