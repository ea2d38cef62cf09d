"""Ranks that split each layer must compute with the same samples: their data is compared."""

from __future__ import annotations

from typing import Any

from ...strategies.layers.tensor_parallel import is_compared
from ...strategies.ranks.collectives import Collectives
from ...strategies.ranks.comparison import require_alike
from ..utils.nested import checksum


class SameSamples:
    """Called before each step, on all ranks: compares the batches of the first 16, then of ever fewer.

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
