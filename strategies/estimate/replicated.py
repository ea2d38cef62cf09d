"""What DDP holds and exchanges: everything on each rank, and buckets in which gradients are reduced."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .description import Collective, Described, Layout, RankBytes
from .model_bytes import ModelBytes, Moment

_BUCKET_MB = 25


class ReplicatedEstimate(Described):
    """``DDP``'s description of itself."""

    _options: dict[str, Any]

    def bytes_at(self, moment: Moment, model: ModelBytes, layout: Layout) -> RankBytes:
        found = super().bytes_at(moment, model, layout)
        if self._options["gradient_as_bucket_view"]:  # the buckets are the gradients, and always there
            return replace(found, gradients=model.trained)
        return replace(found, reducing=model.trained)

    def collectives_of_step(self, model: ModelBytes, layout: Layout) -> list[Collective]:
        if layout.ranks == 1:
            return []
        bucket = (self._options["bucket_cap_mb"] or _BUCKET_MB) * 2**20
        return [Collective("all_reduce", model.trained, math.ceil(model.trained / bucket) or 1, "backward")]
