"""What DeepSpeed's ZeRO holds and exchanges, by stage, as DeepSpeed 0.19 allocates it.

Besides what the paper counts (Rajbhandari et al., "ZeRO", 2020, section 5): a copy of the partition that
the optimizer updates, the bucket in which gradients are reduced (allocated in whole), and under stage 3
what is gathered ahead and kept for backward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..estimate.description import Collective, Description, Layout, RankBytes, divided
from ..estimate.model_bytes import ModelBytes, Moment
from .config import default_bucket

_ALL_REDUCED_AT_ONCE = 500_000_000
_STAGE_3 = {
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_param_persistence_threshold": 100_000,
}
"""Numbers of parameters, DeepSpeed's defaults."""


class ZeroDescription(Description):
    """``DeepSpeed``'s description of itself.

    Args:
        stage: Of ZeRO.
        offload: Whether optimizer state is in the host's memory.
        config: As the user gave it.
    """

    def __init__(self, stage: int, offload: bool, config: dict[str, Any]) -> None:
        super().__init__(many_ranks=True, smaller='strategy="deepspeed_stage_3"' if stage < 3 else None)
        self.stage, self.offload, self.config = stage, offload, config

    def states(self, model: ModelBytes, layout: Layout) -> RankBytes:
        spread = [layout.ranks if self.stage >= stage else 1 for stage in (3, 2, 1)]
        sizes = (model.parameters, model.trained, model.optimizer)
        parameters, gradients, optimizer = map(divided, sizes, spread)
        return RankBytes(parameters + model.buffers, gradients, optimizer)

    def bytes_at(self, moment: Moment, model: ModelBytes, layout: Layout) -> RankBytes:
        if self.stage == 0:
            found = super().bytes_at(moment, model, layout)
            most = self._size(_ALL_REDUCED_AT_ONCE, model)
            return replace(found, reducing=most) if moment.phase == "reduce" else found
        ranks = layout.ranks
        part = divided(model.trained, ranks)
        states = self.states(model, layout)
        found = replace(
            states,
            gradients=self._gradients(moment, model, part),
            optimizer=states.optimizer + part,
            activations=moment.activations + self._temporaries(moment, model, ranks),
            reducing=self._reducing(moment, model) if moment.gradients and moment.phase != "update" else 0,
        )
        if self.stage == 3:
            found = self._third(found, moment, model, ranks)
        return self._on_the_host(found, moment, model, ranks) if self.offload else found

    def update_share(self, layout: Layout) -> float:
        return 1 / layout.ranks if self.stage else 1.0

    @property
    def updates_on_host(self) -> bool:
        return self.offload

    def _gradients(self, moment: Moment, model: ModelBytes, part: int) -> int:
        """They are moved into the bucket one after another, and a rank's part is copied out of it."""
        if moment.phase == "update":
            return part if moment.temporaries else 2 * part
        if self.stage == 1:
            return moment.gradients
        return part if moment.gradients and self._has_begun(moment, model) else 0

    def _has_begun(self, moment: Moment, model: ModelBytes) -> bool:
        """Whether a bucket has been full."""
        return moment.phase == "reduce" or self._bucket(model) < model.trained

    def _reducing(self, moment: Moment, model: ModelBytes) -> int:
        """Buckets, and of one with 16-bit gradients two copies: it is made flat, and reduced in float32."""
        is_wide = model.trained == 2 * model.numbers and self.config.get("communication_data_type") is None
        copied = self._bucket(model) * (1 + 2) if is_wide and self._has_begun(moment, model) else 0
        return self._buckets(model) + copied

    def _temporaries(self, moment: Moment, model: ModelBytes, ranks: int) -> int:
        """The optimizer updates one flat parameter for each group, and needs as much for each number."""
        if not moment.temporaries or not model.largest:
            return 0
        each = moment.temporaries / (model.trained if model.at_once else model.largest)
        return divided(each * model.largest_group, ranks)

    def _third(self, found: RankBytes, moment: Moment, model: ModelBytes, ranks: int) -> RankBytes:
        part = divided(model.trained, ranks)
        kept = self._persistent(model)
        gradients = part  # a buffer for a rank's part, always there
        if moment.phase == "update":
            gradients += part
        reduced = min(self._bucket(model), model.trained) if moment.phase == "reduce" else 0
        return replace(
            found,
            parameters=found.parameters + kept,
            gradients=gradients,
            gathered=self._gathered(moment, model) - kept if moment.phase in ("forward", "backward") else 0,
            reducing=self._bucket(model) + reduced,
        )

    def _persistent(self, model: ModelBytes) -> int:
        most = self._of_all("stage3_param_persistence_threshold", model)
        return sum(size for size in model.sizes if size <= most)

    def _gathered(self, moment: Moment, model: ModelBytes) -> int:
        """Parameters gathered ahead, the buffer they come in, and those that backward needs again soon."""
        ahead = self._of_all("stage3_prefetch_bucket_size", model)
        again = self._of_all("stage3_max_reuse_distance", model) // 2
        largest = max([*model.units, model.outer], default=0)
        whole = min(model.parameters, max(again, largest) + ahead)
        if moment.phase == "forward" and (moment.inside or moment.unit < 0):
            return whole + min(ahead, model.parameters)  # until the last of them has been used
        return whole

    def _on_the_host(self, found: RankBytes, moment: Moment, model: ModelBytes, ranks: int) -> RankBytes:
        part = divided(model.trained, ranks)
        temporaries = self._temporaries(moment, model, ranks)
        host = found.optimizer + 2 * part + temporaries
        found = replace(found, optimizer=0, activations=found.activations - temporaries)
        if moment.phase == "update":
            found = replace(found, gradients=0)
        if self.stage == 3:
            shard = divided(model.parameters, ranks)
            found = replace(found, parameters=found.parameters - shard, gradients=0)
            host += shard
        return replace(found, host=host)

    def _size(self, numbers: int, model: ModelBytes) -> int:
        """The bytes of so many numbers, at most those of the trained parameters."""
        return int(min(numbers, model.numbers) * model.trained / model.numbers) if model.numbers else 0

    def _zero(self, name: str, default: Any) -> Any:
        return self.config.get("zero_optimization", {}).get(name, default)

    def _of_all(self, option: str, model: ModelBytes) -> int:
        """The bytes of so many numbers as an option says, at most of all parameters, frozen ones too."""
        numbers = min(int(self._zero(option, _STAGE_3[option])), model.all_numbers)
        return int(numbers * model.parameters / max(1, model.all_numbers))

    def _bucket(self, model: ModelBytes) -> int:
        numbers = self._zero("reduce_bucket_size", default_bucket(model.numbers))
        return int(numbers * model.trained / model.numbers) if model.numbers else 0

    def _buckets(self, model: ModelBytes) -> int:
        return self._bucket(model) * (2 if self._zero("overlap_comm", False) else 1)

    def collectives_of_step(self, model: ModelBytes, layout: Layout) -> list[Collective]:
        if layout.ranks == 1:
            return []
        times = max(1, -(-model.trained // max(self._bucket(model), 1)))
        overlaps = self._zero("overlap_comm", self.stage == 3)
        backward: Any = "backward" if overlaps else None
        if self.stage == 0:
            return [Collective("all_reduce", model.trained, times)]
        if self.stage == 3:
            passes = len(model.units) + 1
            micro = model.micro_batches
            size = model.parameters * micro
            found = [
                Collective("all_gather", size, passes * micro, "forward"),
                Collective("all_gather", size, passes * micro, "backward"),
                Collective("reduce_scatter", model.trained * micro, times * micro, backward),
            ]
        else:
            reduction = Collective("all_reduce", model.trained, times, backward)
            if self.stage == 2:
                micro = model.micro_batches
                reduction = replace(reduction, size=model.trained * micro, times=times * micro)
            found = [reduction, Collective("all_gather", model.parameters)]
        if self.offload:
            found.append(Collective("to_host", model.trained / layout.ranks, times, backward))
            found.append(Collective("from_host", model.trained / layout.ranks))
        return found
