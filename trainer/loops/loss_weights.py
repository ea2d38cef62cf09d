"""What a micro-batch's loss counts in its step: by its samples, or by the weight returned with it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .fit_context import FitContext
from .step_output import other_ranks_weights, some_weights, weights_of_some_ranks


class LossWeights:
    """Weighs losses, so that a step goes down sum(weight * loss) / sum(weight) over all ranks."""

    def __init__(self, context: FitContext) -> None:
        self._strategy, self._ranks = context.strategy, context.ranks
        self._state, self._step = context.state, context.step
        self._world_size, self._data_ranks = context.ranks.world_size, context.ranks.data_world_size
        self._returned: bool | None = None  # whether weights are, which the first step shows

    def weigh(self, loss: Tensor, weight: Any, index: int) -> Tensor:
        """The part of a micro-batch in the step's loss.

        A weight is known only now; their sum is divided out when all are known. Samples were known before:
        the part by samples is multiplied by the data ranks, over which gradients are averaged.

        Args:
            loss: Of the micro-batch.
            weight: The one returned with it, or its samples where nobody knows those of all; else None.
            index: The number of the micro-batch in its step.
        """
        step = self._step
        if len(step.weights) != (0 if weight is None else index):
            raise some_weights(self._state.step_label)
        if self._returned is None:
            self._returned = self._agree(weight)
        if self._world_size > 1 and self._returned is not (weight is not None):
            raise other_ranks_weights(f"{self._state.step_label}, rank {self._ranks.rank}", weight)
        if weight is None:
            factor = step.sizes[index] * self._data_ranks / (step.total or 1)
            return loss if factor == 1.0 else loss * factor
        step.weights.append(weight)
        weighed: Tensor = loss * (weight / self._state.weight_reference)
        if len(step.weights) == len(step.batches):  # on an accelerator it is on its way during backward
            step.sum_of_weights = self._ranks.all_reduce_async(self._as_word(sum(step.weights)))
        return weighed

    def _agree(self, weight: Any) -> bool:
        """Whether ranks return weights, in the first step; and near which number all are scaled.

        Raises:
            PacelineError: on all ranks, where only some do.
        """
        # A power of two near the weights: scaled losses keep the range of the loss, exactly.
        near = None if weight is None else 2.0 ** round(math.log2(float(weight))) if weight > 0 else 1.0
        everyone = self._ranks.all_gather(near)
        without = [rank for rank, found in enumerate(everyone) if found is None]
        if 0 < len(without) < len(everyone):
            raise weights_of_some_ranks(self._state.step_label, without)
        if self._state.weight_reference is None:
            self._state.weight_reference = everyone[0]
        return weight is not None

    def divide_out(self, optimizer: Optimizer) -> None:
        """Divide unscaled gradients by the sum of the step's weights."""
        assert self._step.sum_of_weights is not None
        # A step without any weight has no gradient, not a NaN. The sum is over all ranks: those of a
        # tensor group have the same weights, and are in world_size as often.
        total = self._step.sum_of_weights().clamp(min=1e-30).squeeze(0)
        factor = (self._state.weight_reference or 1.0) * self._world_size / total
        self._strategy.multiply_gradients(optimizer, factor)

    def _as_word(self, value: Any) -> Tensor:
        """One number as a tensor on the device."""
        wide = torch.float32 if self._strategy.device.type == "mps" else torch.float64
        return torch.as_tensor(value, dtype=wide, device=self._strategy.device).reshape(1)
