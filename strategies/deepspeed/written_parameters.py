"""What the user wrote to parameters between two updates goes into ZeRO's masters, from which it updates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import internals, zero_state


class WrittenParameters:
    """Takes up what a hook or ``training_step`` wrote: in place, to ``.data``, or as another ``.data``.

    An update begins from fp32 copies, and forward reads others. What differs in the one that forward reads
    was written since the last update. One pass over this rank's part before each update, without a wait.

    Args:
        engine: Of stages 1 to 3, as ``deepspeed.initialize`` returned it; of stage 0 there are no copies.
    """

    def __init__(self, engine: Any) -> None:
        self._engine, self._stage = engine, engine.zero_optimization_stage()
        groups = zero_state.flat_groups(engine) if self._stage in (1, 2) else []
        self._views = [(p, p.data) for _, parameters in groups for p in parameters]

    @torch.no_grad()
    def take_up(self) -> None:
        """Before an update. On all ranks, which have written alike."""
        if self._stage == 0:
            return
        for parameter, view in self._views:
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.data)
                parameter.data = view
        if self._stage == 3:
            zero_state.divide_whole_ones(internals.persistent_parameters(self._engine))
        for part, master in internals.parts_and_masters(self._engine, self._stage):
            _take_up(part, master)


def _take_up(part: Tensor | None, master: Tensor) -> None:
    """Give a master the values of a part where it does not round to them."""
    if part is None or part is master or part.numel() != master.numel():
        return  # the same tensor, or on a disk
    part = part.to(master.device)
    if part.dtype == master.dtype:
        master.copy_(part)
    else:
        master.copy_(torch.where(part == master.to(part.dtype), master, part.to(master.dtype)))
