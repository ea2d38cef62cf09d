"""Replicas that have come apart: noticed after steps 1, 2, 4, 8 ... and before each checkpoint."""

from __future__ import annotations

import math
from functools import partial

from torch import nn

from ...errors import PacelineError
from ...strategies import Strategy
from ...strategies.ranks.replicas import copies, find_difference


class Replicas:
    """The ranks' copies of the weights, where they have some.

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
                where=f"after step {step}{before}",
                got=difference,
                fix="change weights on every rank alike. Usual causes: a parameter set outside the "
                "optimizer on one rank; weights made from random draws or from buffers, which differ from "
                "rank to rank; gradients not averaged, as of a graph promised to be static that is not",
            )
        self._equal_after = step
