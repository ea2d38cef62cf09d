"""What all strategies over a process group share: the collectives, state files, and their checks."""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import PacelineError, is_users_frame
from .dtypes.precision import Precision
from .launch.environment import Environment
from .launch.process_group import host_group, join, writers_group
from .ranks import recursive_doubling
from .single import Single
from .sync_batchnorm import SyncedBatchNorms
from .tensors import tensor_state as state
from .tensors.gathered import Gathered
from .tensors.sharding import whole
from .trained import TrainedChange

_OBJECT = "an object"


@dataclass
class _Reduction:
    """Values of this rank that are to be reduced, and what came of it."""

    values: Tensor
    op: str
    result: Tensor | None = None


class Distributed(Single):
    """The base of strategies on several ranks; write a new strategy as a subclass of it.

    As it is, it computes like ``Single`` on each rank and leaves the gradients alone. A subclass reduces
    them: what the last ``backward`` of a step leaves in ``.grad`` must be the mean over the ranks. (Not in
    ``unscale``, which is called only where something reads the gradients before the update.)
    ``paceline.testing.check_strategy`` checks it.

    Example:
        >>> class AverageOnce(Distributed):
        ...     name = "average_once"
        ...     def setup(self, module, build_optimizers):
        ...         self.prepare_module(module)
        ...         self.last, self.trained = True, [p for p in module.parameters() if p.requires_grad]
        ...         return build_optimizers()
        ...     def synchronise_gradients(self, enabled):
        ...         self.last = enabled  # False for all but the last micro-batch of a step
        ...     def backward(self, loss):
        ...         super().backward(loss)
        ...         if self.last:
        ...             self.average_gradients(self.trained)
        >>> strategy = AverageOnce()  # Trainer(strategy=strategy, devices=8)
    """

    many_ranks = True
    repeats_steps = False
    smaller_strategy: str | None = 'strategy="fsdp"'

    def attach(self, environment: Environment, precision: Precision) -> None:
        super().attach(environment, precision)
        self._not_yet_reduced: deque[_Reduction] = deque()
        if not environment.starts:
            join(environment, self.collective_timeout)

    @property
    def _group(self) -> dist.ProcessGroup:
        return host_group()

    def prepare_module(self, module: nn.Module, *, in_shards: bool = False) -> None:
        """What is done with a module first: values, dtype, device, batch norms; rank 0's values on all."""
        super().prepare_module(module, in_shards=in_shards)
        if self.sync_batchnorm:
            self._batchnorms = SyncedBatchNorms(module)
        self._broadcast_tensors([*module.parameters(), *module.buffers()])

    def trainable_changed(self, module: nn.Module, change: TrainedChange) -> None:
        raise PacelineError(
            f"strategy {self.name!r} fixes at the start which parameters are trained",
            got=str(change),
            fix="strategy='ddp' follows every change; else make it before fit, or in on_setup",
        )

    def _broadcast_tensors(self, tensors: list[Tensor]) -> None:
        if self.environment.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def average_gradients(self, parameters: list[Tensor], most: float = math.inf) -> list[bool]:
        """Average gradients over all ranks, in one collective for each dtype, in ``reduce_dtype``.

        A parameter without a gradient counts as zeros where another rank has one.

        Args:
            parameters: The same ones on every rank, in the same order; their ``.grad`` is replaced.
            most: Begin another collective after so many bytes: each needs as much memory again.

        Returns:
            For each parameter whether it has a gradient on any rank.
        """
        used = [False] * len(parameters)
        for indices in _batched(parameters, most):
            mine = [parameters[i] for i in indices]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in mine]
            present = mine[0].new_tensor([p.grad is not None for p in mine])
            flat = torch.cat([*(g.reshape(-1) for g in grads), present])
            flat = flat.to(torch.promote_types(mine[0].dtype, self.precision.reduce_dtype))
            dist.all_reduce(flat)
            flat /= self.environment.world_size
            *means, somewhere = flat.split([*(p.numel() for p in mine), len(mine)])
            for index, parameter, mean, any_rank in zip(
                indices, mine, means, somewhere.tolist(), strict=True
            ):
                used[index] = any_rank > 0
                dtype = parameter.grad_dtype or parameter.dtype  # type: ignore[attr-defined]
                parameter.grad = mean.view_as(parameter).to(dtype) if any_rank else None
        return used

    @contextmanager
    def evaluation(self, module: nn.Module) -> Iterator[None]:
        self._broadcast_tensors(list(module.buffers()))  # rank 0's running statistics are the run's
        yield

    # -- collectives ---------------------------------------------------------------------------

    def all_reduce(self, values: Tensor, op: str = "sum") -> Tensor:
        return self.all_reduce_async(values, op)()

    def all_reduce_async(self, values: Tensor, op: str = "sum") -> Callable[[], Tensor]:
        self._check("reduce", values, op)
        result = values.detach().clone(memory_format=torch.contiguous_format)
        is_small = result.nbytes <= recursive_doubling.MOST_BYTES
        if result.is_cpu and is_small and op in recursive_doubling.OPERATIONS:
            return self._reduce_when_read(_Reduction(result, op))
        group = self._group if result.is_cpu else None
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
                first.result = recursive_doubling.all_reduce(first.values, first.op, self._group)
                self._not_yet_reduced.popleft()
            return reduction.result

        return wait

    def all_gather(self, value: Any) -> list[Any]:
        value = whole(value)  # of a sharded tensor each rank gets the whole, as everywhere else
        self._check("gather", value if isinstance(value, Tensor) else _OBJECT)
        if not isinstance(value, Tensor):
            return recursive_doubling.all_gather(value, self._group)
        tensors = [torch.empty_like(value) for _ in range(self.environment.world_size)]
        group = self._group if value.is_cpu else None
        dist.all_gather(tensors, value.detach().contiguous(), group=group)
        return tensors

    def gather_with_gradients(self, value: Tensor) -> list[Tensor]:
        self._check("gather", value)
        rows = torch.tensor([value.shape[0], -value.shape[0]] if value.ndim else [1, -1])
        dist.all_reduce(rows, dist.ReduceOp.MAX, group=self._group)  # a collective would end the process
        if rows[0] != -rows[1]:
            raise PacelineError(
                "all_gather(sync_grads=True) takes tensors of one shape",
                got=f"from {-int(rows[1])} to {int(rows[0])} rows on the ranks",
                fix="a global batch size that the ranks divide, and drop_last=True",
            )
        group = self.data_group or (self._group if value.is_cpu else None)
        return list(Gathered.apply(value, group))  # type: ignore[no-untyped-call]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        self._check("broadcast", _OBJECT, f"from rank {source}")  # the others need not have the value
        content = [value]
        dist.broadcast_object_list(content, source, group=self._group)
        return content[0]

    def barrier(self) -> None:
        self._check("barrier", None)
        dist.barrier(group=self._group)

    def _check(self, what: str, value: Any, *more: Any) -> None:
        """With ``debug``: see that all ranks are about to do the same, and name those that are not.

        Raises:
            PacelineError: on every rank, when one is about to call another collective, or the same one
                with another shape or dtype.
        """
        if not self.debug:
            return
        about = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else value or ""
        mine = (" ".join(filter(None, [what, about, *map(str, more)])), _called_from())
        found = recursive_doubling.all_gather(mine, self._group)
        calls = [call for call, _ in found]
        if len(set(calls)) == 1:
            return
        usual = max(set(calls), key=lambda c: (calls.count(c), -calls.index(c)))
        others = [f"rank {r}: {c} at {place}" for r, (c, place) in enumerate(found) if c != usual]
        expected = next(f"{c} at {place}" for c, place in found if c == usual)
        raise PacelineError(
            "collective mismatch across ranks",
            got="; ".join(others[:4]),
            allowed=f"the other ranks call {expected}",
            fix="call it on every rank, in the same order, with the same shape and dtype",
        )

    # -- state ---------------------------------------------------------------------------------

    def shard(self, folder: str, tensors: dict[str, Tensor], take: state.Take) -> state.Shard:
        from .tensors.checkpoint_shards import collect

        return collect(folder, tensors, take, self._group)

    def exchange(self) -> Callable[[Any], list[Any]]:
        return partial(recursive_doubling.all_gather, group=writers_group())

    def load_tensors(
        self, files: Sequence[Path], names: Iterable[str], like: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        return state.load_tensors(files, names, like, self._group)

    def close(self) -> None:
        super().close()
        batchnorms = self.__dict__.pop("_batchnorms", None)
        if batchnorms is not None:
            batchnorms.undo()


def _batched(tensors: list[Tensor], most: float) -> list[list[int]]:
    """Indices of tensors of one dtype and of ``most`` bytes together, or one larger one."""
    batches: list[list[int]] = []
    open_ones: dict[torch.dtype, tuple[list[int], float]] = {}
    for index, tensor in enumerate(tensors):
        batch, size = open_ones.get(tensor.dtype, ([], math.inf))
        if size + tensor.nbytes > most or not batch:
            batch, size = [], 0.0
            batches.append(batch)
        batch.append(index)
        open_ones[tensor.dtype] = (batch, size + tensor.nbytes)
    return batches


def _called_from() -> str:
    """The user's line that led to a collective, else ours."""
    frames = traceback.extract_stack()[:-3]
    users = [f for f in frames if is_users_frame(f.filename)]
    frame = users[-1] if users else frames[-1]
    return f"{frame.filename}:{frame.lineno}"
