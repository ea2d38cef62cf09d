"""What ``Fabric`` knows of the other ranks and does together with them; callbacks and loggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....errors import PacelineError
from ....strategies import Collectives, Strategy
from ..pytorch.accelerators import Accelerator, accelerator_of
from ..pytorch.strategies.view import StrategyView

_KINDS = {bool: torch.uint8, int: torch.int, float: torch.float}
_OPS = ("mean", "avg", "sum", "min", "max")


class Shared:
    """The ranks of a run, its callbacks and loggers.

    Args:
        strategy: Of the run.
        callbacks: Whose methods ``call`` calls.
        loggers: For ``log``.

    Attributes:
        ours: The strategy of ``paceline.strategies``, and the collectives.
    """

    def __init__(self, strategy: Strategy, callbacks: list[Any], loggers: list[Any]) -> None:
        self._strategy, self._callbacks, self.loggers = strategy, callbacks, loggers
        self.ours = SimpleNamespace(strategy=strategy, ranks=strategy.collectives)

    @property
    def accelerator(self) -> Accelerator:
        """The kind of device."""
        return accelerator_of(self.device)

    @property
    def strategy(self) -> StrategyView:
        """The strategy, with Lightning's names; others are those of ``paceline.strategies``."""
        return StrategyView(self)

    @property
    def logger(self) -> Any:
        """The first of the loggers."""
        return self.loggers[0]

    @property
    def ranks(self) -> Collectives:
        """The collectives of the strategy."""
        return self._strategy.collectives

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._strategy.device

    @property
    def global_rank(self) -> int:
        """The number of this process among all."""
        return self.ranks.rank

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine."""
        return self._strategy.environment.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this machine."""
        return self.global_rank // self._strategy.environment.local_world_size

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self.ranks.world_size

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""
        return self.ranks.is_global_zero

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        self.ranks.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of one rank, on all."""
        return self.ranks.broadcast(obj, src)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """The values of all ranks, stacked along a new first dimension; one rank's are its own.

        Args:
            data: Numbers and tensors of one shape on all ranks, or a nested structure of them.
            group: All ranks take part.
            sync_grads: Whether a backward goes through it.
        """
        _refuse_group(group)
        gather = self.ranks.gather_with_gradients if sync_grads else self.ranks.all_gather
        return self._mapped(data, lambda t: t if self.world_size == 1 else torch.stack(gather(t)))

    def all_reduce(self, data: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """One value for those of all ranks; tensors are changed in place.

        Args:
            data: As for ``all_gather``.
            group: All ranks take part.
            reduce_op: ``"mean"``, ``"sum"``, ``"min"`` or ``"max"``.

        Raises:
            PacelineError: for another operation.
        """
        _refuse_group(group)
        op = str(reduce_op).rpartition(".")[2].lower()
        if op not in _OPS:
            raise PacelineError(
                "all_reduce has no such operation", code="fabric-usage", got=op, allowed=", ".join(_OPS)
            )
        return self._mapped(data, partial(self._reduced, "sum" if op in _OPS[:2] else op, op in _OPS[:2]))

    def _reduced(self, op: str, divides: bool, tensor: Tensor) -> Tensor:
        if self.world_size == 1:
            return tensor
        total = self.ranks.all_reduce(tensor, op)
        with torch.no_grad():
            return tensor.copy_(total / self.world_size if divides else total)

    def rank_zero_first(self, local: bool = False) -> AbstractContextManager[None]:
        """What is inside runs on rank 0 first, then on the others.

        Args:
            local: On the first rank of each machine first.
        """
        return self.ranks.main_process_first(per_node=local)

    def call(self, hook_name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of all callbacks that have it, with those keywords that it takes."""
        for callback in self._callbacks:
            method = getattr(callback, hook_name, None)
            if callable(method):
                method(*args, **_taken(method, kwargs))

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """A value to all loggers."""
        self.log_dict({name: value}, step)

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Values to all loggers; tensors of one element become numbers."""
        plain = {name: v.item() if isinstance(v, Tensor) else v for name, v in metrics.items()}
        for logger in self.loggers:
            logger.log_metrics(metrics=plain, step=step)

    def print(self, *values: Any, **options: Any) -> None:
        """Print on the first rank of each machine."""
        if self.local_rank == 0:
            print(*values, **options)

    def _mapped(self, data: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """A nested structure with ``change`` applied to tensors, on the device, and numbers."""
        if isinstance(data, Mapping):
            return {key: self._mapped(value, change) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return type(data)(self._mapped(value, change) for value in data)
        if type(data) in _KINDS:
            data = torch.tensor(data, dtype=_KINDS[type(data)])
        if isinstance(data, np.ndarray):
            data = torch.from_numpy(data)
        return change(data.to(self.device)) if isinstance(data, Tensor) else data


def _refuse_group(group: Any) -> None:
    if group is not None and group is not getattr(torch.distributed.group, "WORLD", None):
        raise PacelineError(
            "a collective of Fabric is over all ranks",
            code="fabric-usage",
            got=f"group={type(group).__name__}",
            fix="torch.distributed with that group",
        )


def _taken(method: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The keywords that a method has parameters for."""
    parameters = signature(method).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}
