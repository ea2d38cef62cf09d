"""What FSDP and HSDP hold and exchange: shards, and the unit that is computed, whole.

In forward the buffer in which a unit was gathered is kept until the next one has been; in backward the next
unit is gathered ahead, and the buffer in which a unit's gradients were reduced is kept until the next are.
(torch/distributed/fsdp/_fully_shard of torch 2.13.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..dtypes.precision import Precision
from .description import Collective, Description, Layout, RankBytes, divided
from .model_bytes import ModelBytes, Moment, bytes_of


class ShardedDescription(Description):
    """``FSDP``'s description of itself.

    Args:
        mixed_precision: Its ``MixedPrecisionPolicy``, if any.
        reshard_after_forward: Whether what was gathered is freed between forward and backward.
        cpu_offload: Whether the shards are in the host's memory.
        groups_of_ranks: How many groups of ranks hold the same shards.
    """

    def __init__(
        self,
        mixed_precision: Any,
        reshard_after_forward: bool | int | None,
        cpu_offload: bool,
        groups_of_ranks: Callable[[Layout], int],
    ) -> None:
        super().__init__(many_ranks=True)
        self.mixed_precision, self.reshard_after_forward = mixed_precision, reshard_after_forward
        self.cpu_offload, self.groups_of_ranks = cpu_offload, groups_of_ranks

    def computes_in(self, precision: Precision) -> torch.dtype:
        dtype = getattr(self.mixed_precision, "param_dtype", None)
        return precision.param_dtype if dtype is None else dtype

    def states(self, model: ModelBytes, layout: Layout) -> RankBytes:
        ranks = max(layout.ranks // self.groups_of_ranks(layout), 1)
        parameters, gradients = divided(model.parameters, ranks), divided(model.trained, ranks)
        return RankBytes(parameters + model.buffers, gradients, divided(model.optimizer, ranks))

    def bytes_at(self, moment: Moment, model: ModelBytes, layout: Layout) -> RankBytes:
        ranks = max(layout.ranks // self.groups_of_ranks(layout), 1)
        ratio = model.compute_ratio
        finished = model.trained if moment.phase == "update" else moment.finished / ratio
        whole = 0 if moment.phase == "update" else moment.gradients - moment.finished
        found = replace(
            self.states(model, layout),
            gradients=divided(finished, ranks) + whole,
            activations=moment.activations + divided(moment.temporaries, ranks),
            gathered=int(self._gathered(moment, model) * ratio),
            reducing=int(self._reducing(moment, model) * self._reduce_ratio(model)),
        )
        found = replace(found, idle=self._idle(found, moment, model, ranks))
        return self._on_the_host(found, moment, model, ranks) if self.cpu_offload else found

    def _idle(self, found: RankBytes, moment: Moment, model: ModelBytes, ranks: int) -> int:
        """Shards of gradients and the buffers of gathering come from the pools of other streams."""
        shards = divided(model.trained, ranks) - divided(moment.finished / model.compute_ratio, ranks)
        buffer = max([*model.units, model.outer]) - self._buffer(moment, model)
        return max(0, shards) + max(0, int(buffer * model.compute_ratio))

    def _buffer(self, moment: Moment, model: ModelBytes) -> int:
        """Bytes of parameters, as they are kept, in the buffer that was gathered in last."""
        if moment.phase in ("reduce", "update"):
            return 0
        if moment.unit < 0:
            return model.outer
        if moment.phase == "forward" or not moment.gradients:
            return model.units[moment.unit]
        if self.reshard_after_forward is False or not moment.unit:
            return 0
        return model.units[moment.unit - 1]

    def update_share(self, layout: Layout) -> float:
        return self.groups_of_ranks(layout) / layout.ranks

    @property
    def updates_on_host(self) -> bool:
        return self.cpu_offload

    def _gathered(self, moment: Moment, model: ModelBytes) -> int:
        """Bytes of whole parameters as they are kept, and of the buffers they were gathered in."""
        if moment.phase in ("reduce", "update"):
            return 0
        units = model.units[: moment.unit + 1]
        if self.reshard_after_forward is not False:
            units = units[-1:] if moment.inside else ()
        return model.outer + sum(units) + self._buffer(moment, model)

    def _reducing(self, moment: Moment, model: ModelBytes) -> int:
        """Bytes of gradients, as parameters are kept, in the buffer that was reduced last."""
        if moment.phase == "reduce":
            return model.outer
        if moment.phase != "backward" or not moment.finished:
            return 0
        last = moment.unit + 1 if moment.inside else moment.unit
        return model.units[last] if last < len(model.units) else 0

    def _reduce_ratio(self, model: ModelBytes) -> float:
        dtype = getattr(self.mixed_precision, "reduce_dtype", None)
        if dtype is None or not model.numbers:
            return model.compute_ratio
        return bytes_of(dtype) * model.numbers / model.trained

    def _on_the_host(self, found: RankBytes, moment: Moment, model: ModelBytes, ranks: int) -> RankBytes:
        temporaries = divided(moment.temporaries, ranks)
        whole = moment.gradients - moment.finished
        shards = divided(model.trained, ranks) - divided(moment.finished / model.compute_ratio, ranks)
        return replace(
            found,
            parameters=model.buffers,
            gradients=0 if moment.phase == "update" else whole,
            idle=found.idle - max(0, shards),
            optimizer=0,
            activations=found.activations - temporaries,
            host=divided(model.parameters + model.trained + model.optimizer, ranks) + temporaries,
        )

    def collectives_of_step(self, model: ModelBytes, layout: Layout) -> list[Collective]:
        groups = self.groups_of_ranks(layout)
        ranks = layout.ranks // groups
        ratio, passes = model.compute_ratio, len(model.units) + 1
        found: list[Collective] = []
        if ranks > 1:
            size = model.parameters * ratio
            again = 0.0 if self.reshard_after_forward is False else sum(model.units) * ratio
            micro = model.micro_batches
            found.append(Collective("all_gather", size * micro, passes * micro, "forward", ranks))
            if again:
                found.append(
                    Collective("all_gather", again * micro, len(model.units) * micro, "backward", ranks)
                )
            reduced = model.trained * self._reduce_ratio(model)
            found.append(Collective("reduce_scatter", reduced, passes, "backward", ranks))
        if groups > 1:
            part = model.trained * self._reduce_ratio(model) / ranks
            found.append(Collective("all_reduce", part, passes, "backward", groups, layout.nodes > 1))
        if self.cpu_offload:
            found.append(Collective("from_host", model.parameters / ranks, passes, "forward"))
            found.append(Collective("to_host", model.trained / ranks, passes, "backward"))
        return found
