"""What the user wrote to parameters between two updates goes into ZeRO's masters, from which it updates."""

from __future__ import annotations

from typing import Any

import torch

from . import internals, zero_state


class WrittenParameters:
    """Takes up what a hook or ``training_step`` wrote: in place, to ``.data``, or as another ``.data``.

    An update begins from copies, and forward reads others, of the same dtype: before each update they are
    copied, this rank's part, without a wait.

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
        for parameter, view in self._views:
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.data)
                parameter.data = view
        if self._stage == 3:
            zero_state.divide_whole_ones(internals.persistent_parameters(self._engine))
        elif self._stage:
            for part, master in internals.parts_and_masters(self._engine):
                master.copy_(part)  # of one dtype: there is nothing in it that the part has not

    @torch.no_grad()
    def take_up_group(self, which: Any) -> None:
        """Before the update of one group of stage 3: its master, which may come from NVMe, is in memory."""
        if self._stage == 3:
            part, master = internals.part_and_master(self._engine, which)
            master.copy_(part)
