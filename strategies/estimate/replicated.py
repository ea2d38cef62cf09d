"""What DDP holds and exchanges: everything on each rank, and buckets in which gradients are reduced."""

from __future__ import annotations

import math
from dataclasses import replace

from .description import Collective, Description, Layout, RankBytes
from .model_bytes import ModelBytes, Moment

_BUCKET_MB = 25


class ReplicatedDescription(Description):
    """``DDP``'s description of itself.

    Args:
        bucket_mb: Size of the buckets in which gradients are reduced; None is torch's default.
        as_view: Whether gradients live in those buckets.
    """

    def __init__(self, bucket_mb: float | None, as_view: bool) -> None:
        super().__init__(many_ranks=True, smaller='strategy="fsdp"')
        self._bucket, self._as_view = int((bucket_mb or _BUCKET_MB) * 2**20), as_view

    def bytes_at(self, moment: Moment, model: ModelBytes, layout: Layout) -> RankBytes:
        found = super().bytes_at(moment, model, layout)
        buckets = model.trained  # always there
        wide = 2 * model.trained if model.trained <= 2 * model.numbers else 0  # reduced in float32
        copied = min(wide, self._bucket) if moment.phase == "reduce" else 0
        if model.sums_wide or not self._as_view:
            return replace(found, reducing=buckets + copied)
        # The buckets are the gradients; those of earlier micro-batches come into them with the last one.
        found = replace(found, gradients=buckets, reducing=copied)
        if model.micro_batches > 1 and moment.phase in ("forward", "backward"):
            return replace(found, reducing=moment.gradients)
        return found

    def collectives_of_step(self, model: ModelBytes, layout: Layout) -> list[Collective]:
        if layout.ranks == 1:
            return []
        times = math.ceil(model.trained / self._bucket) or 1
        return [Collective("all_reduce", model.trained, times, "backward")]
