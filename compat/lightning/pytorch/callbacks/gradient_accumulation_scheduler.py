"""``GradientAccumulationScheduler`` with Lightning's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..... import callbacks as ours
from .callback import Callback
from .overrides import refuse_overrides


class GradientAccumulationScheduler(Callback):
    """Accumulates another number of batches from certain epochs on.

    Args:
        scheduling: By epoch, from 0, the batches in an optimizer step.
    """

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        self.scheduling = dict(scheduling)

    def ours(self, trainer: Any) -> list[Any]:
        refuse_overrides(self, GradientAccumulationScheduler)
        return [ours.GradientAccumulationScheduler(self.scheduling)]
