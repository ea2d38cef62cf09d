"""Which part of a checkpoint's tensors each rank writes, as torch.distributed.checkpoint plans it.

Replicas are shared out over the ranks, of a sharded tensor each rank has its own part. Imported at the
first save: torch's checkpoint package takes half a second.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageWriter, save
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .tensor_state import Shard, Take


class _Collector(HuggingFaceStorageWriter):
    """Takes what this rank is to write, and writes nothing."""

    def __init__(self, folder: str, take: Take) -> None:
        super().__init__(folder, save_distributed=True)
        self._take = take
        self.shard = Shard()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if plan.items:
            self.shard.number = plan.storage_data["shard_index"]
        for item in plan.items:
            name, part, value = item.index.fqn, item.tensor_data, planner.resolve_data(item)
            assert part is not None
            assert isinstance(value, Tensor)
            self.shard.tensors[name] = self._take(name, value)
            self.shard.offsets[name] = list(part.chunk.offsets)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done


def collect(folder: str, tensors: dict[str, Tensor], take: Take, group: Any) -> Shard:
    """This rank's part of ``tensors``; see ``Weights.shard``.

    Args:
        folder: The folder of the checkpoint; nothing is written here yet.
        tensors: By name, the same names on all ranks of the group.
        take: Given a name and the rank's part of a tensor, returns what is to be written of it.
        group: The process group of the ranks that write together.
    """
    collector = _Collector(folder, take)
    save(tensors, storage_writer=collector, process_group=group)
    return collector.shard
