"""Which part of a checkpoint's tensors each rank writes, as torch.distributed.checkpoint plans it.

Replicas are shared out over the ranks, of a sharded tensor each rank has its own part. Imported at the
first save: torch's checkpoint package takes half a second.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageWriter, save
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

Take = Callable[[str, Tensor], Tensor]


@dataclass
class Shard:
    """What one rank writes.

    Attributes:
        number: The rank's, from 1.
        tensors: Parts of tensors by the whole ones' names, on the CPU.
        offsets: Where each part lies in the whole.
    """

    number: int = 1
    tensors: dict[str, Tensor] = field(default_factory=dict)
    offsets: dict[str, list[int]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())


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
            name, part = item.index.fqn, item.tensor_data
            assert part is not None
            self.shard.tensors[name] = self._take(name, planner.resolve_data(item))
            self.shard.offsets[name] = list(part.chunk.offsets)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done


def collect(folder: str, tensors: dict[str, Tensor], take: Take, group: Any = None) -> Shard:
    """This rank's part of ``tensors``; see ``Strategy.shard``.

    Args:
        group: The process group of the ranks that write together; None: this process alone.
    """
    collector = _Collector(folder, take)
    with quietly():
        save(tensors, storage_writer=collector, process_group=group, no_dist=group is None)
    return collector.shard


@contextmanager
def quietly() -> Iterator[None]:
    """Without the warning that there is one process only: that may be what is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
