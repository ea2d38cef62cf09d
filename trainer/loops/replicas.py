"""What ranks must have alike, and compare now and then: copies of the weights, samples of split layers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import nn

from ...errors import PacelineError
from ...strategies import Strategy
from ...strategies.layers.tensor_parallel import is_compared
from ...strategies.ranks.collectives import Collectives
from ...strategies.ranks.comparison import require_alike
from ...strategies.ranks.replicas import copies, find_difference
from ..utils.nested import checksum


class Replicas:
    """The ranks' copies of the weights, where they have some: compared after steps 1, 2, 4, 8 ...

    Args:
        module: The user's.
        strategy: Of the run, after ``setup``.
        step: The steps that were made before this session.
    """

    def __init__(self, module: nn.Module, strategy: Strategy, step: int) -> None:
        self._module, self._ranks = module, strategy.collectives
        self._parts = partial(strategy.weights.parameter_parts, module)
        self._equal_after: int | None = None
        self._begun_at = step

    @property
    def exist(self) -> bool:
        """Whether a parameter has a copy on another rank."""
        return bool(copies(self._ranks, self._module, self._parts()))

    def due_after(self, step: int) -> float:
        """The next step after which they are to be compared: 1, 2, 4, 8 ... of this session."""
        if self._ranks.world_size == 1:
            return math.inf
        return self._begun_at + (1 << (step - self._begun_at).bit_length())

    def compare(self, step: int) -> None:
        """Compare them. To be called on all ranks, after the update of this step.

        Raises:
            PacelineError: on every rank, where they differ.
        """
        if self._equal_after == step or self._ranks.world_size == 1:
            return
        difference = find_difference(self._ranks, self._module, self._parts())
        if difference is not None:
            before = "" if self._equal_after is None else f"; all were equal after step {self._equal_after}"
            raise PacelineError(
                "the ranks no longer hold the same parameters",
                code="ranks-differ",
                where=f"after step {step}{before}",
                got=difference,
                fix="change weights on every rank alike. Usual causes: a parameter set outside the "
                "optimizer on one rank; weights made from random draws or from buffers, which differ from "
                "rank to rank; gradients not averaged, as of a graph promised to be static that is not",
            )
        self._equal_after = step


class SameSamples:
    """Ranks that split each layer must compute with the same samples: their batches are compared.

    Called before each step, on all ranks: looks at the first 16, then at ever fewer.

    Args:
        ranks: Of the run.

    Raises:
        PacelineError: on all ranks, naming two that have other batches.
    """

    def __init__(self, ranks: Collectives) -> None:
        self._ranks, self._steps = ranks, 0

    def __call__(self, trainer: Any, batches: list[Any]) -> None:
        self._steps += 1
        if is_compared(self._steps):
            require_alike(self._ranks, [checksum(batch) for batch in batches])
