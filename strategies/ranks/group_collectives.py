"""The collectives of a process group: the process group carries the values, and ranks are compared."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import PacelineError, is_users_frame
from ..launch.environment import Environment
from ..launch.process_group import data_group, host_group, writers_group
from ..tensors.gathered import Gathered
from ..tensors.sharding import whole
from . import recursive_doubling
from .collectives import Collectives

_OBJECT = "an object"


@dataclass
class _Reduction:
    """Values of this rank that are to be reduced, and what came of it."""

    values: Tensor
    op: str
    result: Tensor | None = None


class GroupCollectives(Collectives):
    """The collectives of a rank in torch's process group, which it has joined.

    Small values on the host go by recursive doubling, large ones and those on a device through torch's.

    Args:
        environment: Of this rank.
        tensor_parallel_size: How many ranks split each layer between them.
        checks: See before each collective that all ranks call the same one.

    Example:
        >>> strategy.collectives = GroupCollectives(environment, checks=True)  # doctest: +SKIP
    """

    def __init__(
        self, environment: Environment, tensor_parallel_size: int = 1, checks: bool = False
    ) -> None:
        super().__init__(environment, tensor_parallel_size)
        self._checks = checks
        self._not_yet_reduced: deque[_Reduction] = deque()

    @property
    def group(self) -> dist.ProcessGroup:
        return host_group()

    @property
    def data_group(self) -> Any:
        return None if self.tensor_parallel_size == 1 else data_group(self.tensor_parallel_size)

    def exchange(self) -> Callable[[Any], list[Any]]:
        return partial(recursive_doubling.all_gather, group=writers_group())

    def all_reduce(self, values: Tensor, op: str = "sum") -> Tensor:
        return self.all_reduce_async(values, op)()

    def all_reduce_async(self, values: Tensor, op: str = "sum") -> Callable[[], Tensor]:
        self._check("reduce", values, op)
        result = values.detach().clone(memory_format=torch.contiguous_format)
        is_small = result.nbytes <= recursive_doubling.MOST_BYTES
        if result.is_cpu and is_small and op in recursive_doubling.OPERATIONS:
            return self._reduce_when_read(_Reduction(result, op))
        group = self.group if result.is_cpu else None
        work = dist.all_reduce(result, getattr(dist.ReduceOp, op.upper()), group=group, async_op=True)

        def wait() -> Tensor:
            work.wait()
            return result

        return wait

    def _reduce_when_read(self, reduction: _Reduction) -> Callable[[], Tensor]:
        """Nothing is sent before a rank waits: where an error comes first, no rank waits for a part of it.

        All that was started before is reduced first: ranks may read in different orders.
        """
        self._not_yet_reduced.append(reduction)

        def wait() -> Tensor:
            while reduction.result is None:
                first = self._not_yet_reduced[0]
                first.result = recursive_doubling.all_reduce(first.values, first.op, self.group)
                self._not_yet_reduced.popleft()
            return reduction.result

        return wait

    def all_gather(self, value: Any) -> list[Any]:
        value = whole(value)  # of a sharded tensor each rank gets the whole, as everywhere else
        self._check("gather", value if isinstance(value, Tensor) else _OBJECT)
        if not isinstance(value, Tensor):
            return recursive_doubling.all_gather(value, self.group)
        tensors = [torch.empty_like(value) for _ in range(self.environment.world_size)]
        group = self.group if value.is_cpu else None
        dist.all_gather(tensors, value.detach().contiguous(), group=group)
        return tensors

    def gather_with_gradients(self, value: Tensor) -> list[Tensor]:
        self._check("gather", value)
        rows = torch.tensor([value.shape[0], -value.shape[0]] if value.ndim else [1, -1])
        dist.all_reduce(rows, dist.ReduceOp.MAX, group=self.group)  # a collective would end the process
        if rows[0] != -rows[1]:
            raise PacelineError(
                "all_gather(sync_grads=True) takes tensors of one shape",
                code="ranks-differ",
                got=f"from {-int(rows[1])} to {int(rows[0])} rows on the ranks",
                fix="a global batch size that the ranks divide, and drop_last=True",
            )
        group = self.data_group or (self.group if value.is_cpu else None)
        return list(Gathered.apply(value, group))  # type: ignore[no-untyped-call]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        self._check("broadcast", _OBJECT, f"from rank {source}")  # the others need not have the value
        content = [value]
        dist.broadcast_object_list(content, source, group=self.group)
        return content[0]

    def barrier(self) -> None:
        self._check("barrier", None)
        dist.barrier(group=self.group)

    def _check(self, what: str, value: Any, *more: Any) -> None:
        """Where it ``checks``: see that all ranks are about to do the same, and name those that are not.

        Raises:
            PacelineError: on every rank, when one is about to call another collective, or the same one
                with another shape or dtype.
        """
        if not self._checks:
            return
        about = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else value or ""
        mine = (" ".join(filter(None, [what, about, *map(str, more)])), _called_from())
        found = recursive_doubling.all_gather(mine, self.group)
        calls = [call for call, _ in found]
        if len(set(calls)) == 1:
            return
        usual = max(set(calls), key=lambda c: (calls.count(c), -calls.index(c)))
        others = [f"rank {r}: {c} at {place}" for r, (c, place) in enumerate(found) if c != usual]
        expected = next(f"{c} at {place}" for c, place in found if c == usual)
        raise PacelineError(
            "collective mismatch across ranks",
            code="ranks-differ",
            got="; ".join(others[:4]),
            allowed=f"the other ranks call {expected}",
            fix="call it on every rank, in the same order, with the same shape and dtype",
        )


def _called_from() -> str:
    """The user's line that led to a collective, else ours."""
    frames = traceback.extract_stack()[:-3]
    users = [f for f in frames if is_users_frame(f.filename)]
    frame = users[-1] if users else frames[-1]
    return f"{frame.filename}:{frame.lineno}"
