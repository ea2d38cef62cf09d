"""What a rank does together with the others: the collectives a run, its callbacks and its user may call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ...errors import PacelineError
from ..launch.environment import Environment

T = TypeVar("T")
_ALONE = Environment(torch.device("cpu"))


class Collectives:
    """Values and waits shared with the other ranks. As it stands here there are none: all is immediate.

    That is so on one device, and in the process that has ranks to start, which is none of them.
    ``GroupCollectives`` carries values over a process group.

    Where layers are split over ``tensor_parallel_size`` ranks, so many neighbouring ranks compute with the
    same samples, and the samples of a step are divided among these groups: a group is one data rank. Else
    every rank is one.

    Args:
        environment: Of this process; None: one on the CPU that is alone.
        tensor_parallel_size: How many ranks split each layer between them.

    Attributes:
        simulated_ranks: For how many ranks this process computes, one after another (a replay).

    Example:
        >>> ranks = Collectives(Environment(torch.device("cpu"), rank=5, world_size=8), 2)
        >>> ranks.data_rank, ranks.data_world_size, ranks.tensor_rank
        (2, 4, 1)
    """

    simulated_ranks: int = 1

    def __init__(self, environment: Environment | None = None, tensor_parallel_size: int = 1) -> None:
        self.environment = _ALONE if environment is None else environment
        self.tensor_parallel_size = tensor_parallel_size

    @property
    def rank(self) -> int:
        """The number of this process among all, from 0."""
        return self.environment.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.environment.world_size

    @property
    def data_rank(self) -> int:
        """Which part of each step's samples this rank computes with: ``rank``, unless layers are split.

        Example:
            >>> trainer.ranks.data_rank, trainer.ranks.data_world_size, trainer.ranks.tensor_rank
            (0, 1, 0)
        """
        return self.environment.rank // self.tensor_parallel_size

    @property
    def data_world_size(self) -> int:
        """Among how many ranks a step's samples are divided; ranks that split each layer count once."""
        return self.environment.world_size // self.tensor_parallel_size

    @property
    def tensor_rank(self) -> int:
        """The place of this rank among those that split each layer between them, from 0."""
        return self.environment.rank % self.tensor_parallel_size

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""
        return self.environment.is_global_zero

    @property
    def group(self) -> Any:
        """The process group of all ranks for values on the host; None where there is none."""
        return None

    @property
    def data_group(self) -> Any:
        """The process group with one rank of each data rank, this one's; None: all ranks.

        At its first use to be called on all ranks.
        """
        return None

    def rank_of(self, micro_batch: int) -> int:
        """The rank whose micro-batch it is, of the current step: this one, except in a replay.

        Example:
            >>> trainer.ranks.rank_of(3)
            0
        """
        return self.environment.rank

    def one_per_data_rank(self, everyone: list[T]) -> list[T]:
        """Of values of all ranks, such as ``all_gather`` returns, one of each data rank.

        Example:
            >>> Collectives(tensor_parallel_size=2).one_per_data_rank([0, 1, 2, 3, 4, 5, 6, 7])
            [0, 2, 4, 6]
        """
        return everyone[:: self.tensor_parallel_size]

    def barrier(self) -> None:
        """Wait for all ranks.

        Example:
            >>> trainer.ranks.barrier()
        """

    def broadcast(self, value: T, source: int = 0) -> T:
        """The value that rank ``source`` has, on every rank. Any object that can be pickled.

        Example:
            >>> trainer.ranks.broadcast({"vocabulary": 32000})
            {'vocabulary': 32000}
        """
        return value

    def all_reduce(self, values: Tensor, op: str = "sum") -> Tensor:
        """``sum``, ``min`` or ``max`` over all ranks, the same result on each. To be called on all.

        Example:
            >>> trainer.ranks.all_reduce(torch.tensor([2.0]))
            tensor([2.])
        """
        return values

    def all_reduce_async(self, values: Tensor, op: str = "sum") -> Callable[[], Tensor]:
        """``all_reduce`` whose result is waited for later: the function returns it. To be called on all.

        Example:
            >>> wait = trainer.ranks.all_reduce_async(torch.tensor([2.0]), "max")
            >>> wait()
            tensor([2.])
        """
        result = self.all_reduce(values, op)
        return lambda: result

    def all_gather(self, value: Any) -> list[Any]:
        """One value of every rank, in the order of ranks, on each. Tensors are of one shape.

        Example:
            >>> trainer.ranks.all_gather(trainer.rank)
            [0]
        """
        return [value]

    def gather_data(self, value: Any) -> list[Any]:
        """One value of every data rank, in their order, on each. Tensors are of one shape.

        These are all ranks, but for those that split each layer between them: they have the same samples,
        and count once.

        Example:
            >>> trainer.ranks.gather_data(trainer.rank)
            [0]
        """
        return self.one_per_data_rank(self.all_gather(value))

    def gather_with_gradients(self, value: Tensor) -> list[Tensor]:
        """``gather_data`` of a tensor, whose backward gives each rank the sum over all ranks' losses.

        Example:
            >>> trainer.ranks.gather_with_gradients(torch.ones(2))
            [tensor([1., 1.])]
        """
        return [value]

    def exchange(self) -> Callable[[Any], list[Any]]:
        """``all_gather`` of objects, for one thread beside the main one. To be called on all ranks.

        Example:
            >>> trainer.ranks.exchange()("written")
            ['written']
        """
        return lambda value: [value]

    def on_rank_zero(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on rank 0, on every rank; it is called there alone.

        Raises:
            PacelineError: on every rank, where it raised on rank 0.

        Example:
            >>> trainer.ranks.on_rank_zero(lambda: "read once")
            'read once'
        """
        if self.world_size == 1:
            return function()
        attempt = Attempt.of(function) if self.is_global_zero else Attempt()
        result, problem, code = self.broadcast((attempt.result, attempt.problem, attempt.code))
        if attempt.error is not None:
            raise attempt.error
        if problem is not None:
            raise PacelineError(problem, code=code)
        return cast(T, result)

    @contextmanager
    def main_process_first(self, per_node: bool = False) -> Iterator[None]:
        """What is inside runs on rank 0 while the others wait, then on the others.

        Args:
            per_node: On the first rank of each machine first; for files that machines do not share.

        Raises:
            PacelineError: on the others, when what is inside failed on the first.

        Example:
            >>> with trainer.ranks.main_process_first():
            ...     vocabulary = {"a": 0}  # downloaded by rank 0, read from its cache by the others
        """
        environment = self.environment
        if environment.starts or self.world_size == 1:
            yield
            return
        is_first = environment.local_rank == 0 if per_node else environment.is_global_zero
        if is_first:
            failed: str | None = "it was interrupted"
            try:
                yield
                failed = None
            except Exception as error:
                failed = f"{type(error).__name__}: {error}"
                raise
            finally:
                self.all_gather([failed])
            return
        failures = [(rank, what) for rank, (what,) in enumerate(self.all_gather([None])) if what]
        if failures:
            raise PacelineError(
                f"rank {failures[0][0]} failed in what it does first: {failures[0][1]}", code="rank-failed"
            )
        yield


class Attempt:
    """What a function returned, or the error that it raised.

    Attributes:
        result: None where it raised.
        error: None where it returned.
    """

    def __init__(self, result: Any = None, error: Exception | None = None) -> None:
        self.result, self.error = result, error

    @classmethod
    def of(
        cls,
        function: Callable[[], Any],
        catch: type[Exception] | tuple[type[Exception], ...] = Exception,
    ) -> Attempt:
        """Call ``function``, and keep what it returns or raises.

        Args:
            function: Called once, without arguments.
            catch: Errors of another kind are raised.
        """
        try:
            return cls(function())
        except catch as error:
            return cls(error=error)

    @property
    def problem(self) -> str | None:
        """The error as text: what the other ranks can be sent."""
        return None if self.error is None else str(self.error)

    @property
    def code(self) -> str | None:
        """Of an error of ours: the kind of the mistake."""
        return self.error.code if isinstance(self.error, PacelineError) else None


def run_on_all(
    all_gather: Callable[[Any], list[Any]], function: Callable[[], T], *kinds: type[PacelineError]
) -> T:
    """What ``function`` returns on this rank, once it has returned on every rank. To be called on all.

    Args:
        all_gather: Of the process group of this thread.
        function: Called once on each rank, without arguments.
        *kinds: The kinds of errors that are shared; another is raised on its own rank alone.

    Raises:
        PacelineError: of one of the kinds, on all ranks alike, when it was raised on one.
    """
    attempt = Attempt.of(function, kinds)
    mine = [
        (n, str(attempt.error), attempt.code)
        for n, kind in enumerate(kinds)
        if isinstance(attempt.error, kind)
    ]
    for failed in all_gather(mine):
        for number, problem, code in failed:
            raise kinds[number](problem, code=code)
    return cast(T, attempt.result)
