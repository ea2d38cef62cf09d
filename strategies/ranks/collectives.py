"""What a rank does together with the others: the collectives a run, its callbacks and its user may call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from ...errors import PacelineError
from ..base import Strategy

T = TypeVar("T")


class Collectives:
    """Values and waits shared with the other ranks. On one device all of it is immediate.

    The process that has ranks to start is none of them: what it calls is immediate too.

    Args:
        strategy: Carries the values.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @property
    def rank(self) -> int:
        """The number of this process among all, from 0."""
        return self._strategy.environment.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._strategy.environment.world_size

    @property
    def data_rank(self) -> int:
        """Which part of each step's samples this rank computes with: ``rank``, unless layers are split.

        Example:
            >>> trainer.ranks.data_rank, trainer.ranks.data_world_size, trainer.ranks.tensor_rank
            (0, 1, 0)
        """
        return self._strategy.data_rank

    @property
    def data_world_size(self) -> int:
        """Among how many ranks a step's samples are divided; ranks that split each layer count once."""
        return self._strategy.data_world_size

    @property
    def tensor_rank(self) -> int:
        """The place of this rank among those that split each layer between them, from 0."""
        return self._strategy.tensor_rank

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""
        return self._strategy.environment.is_global_zero

    @property
    def _starts_ranks(self) -> bool:
        return bool(self._strategy.environment.starts)

    def barrier(self) -> None:
        """Wait for all ranks.

        Example:
            >>> trainer.ranks.barrier()
        """
        if not self._starts_ranks:
            self._strategy.barrier()

    def broadcast(self, value: T, source: int = 0) -> T:
        """The value that rank ``source`` has, on every rank. Any object that can be pickled.

        Example:
            >>> trainer.ranks.broadcast({"vocabulary": 32000})
            {'vocabulary': 32000}
        """
        if self._starts_ranks:
            return value
        return cast(T, self._strategy.broadcast(value, source))

    def all_gather(self, value: Any) -> list[Any]:
        """One value of every rank, in the order of ranks, on each. Tensors are of one shape.

        Example:
            >>> trainer.ranks.all_gather(trainer.rank)
            [0]
        """
        return self._strategy.all_gather(value)

    def gather_data(self, value: Any) -> list[Any]:
        """One value of every data rank, in their order, on each. Tensors are of one shape.

        These are all ranks, but for those that split each layer between them: they have the same samples,
        and count once.

        Example:
            >>> trainer.ranks.gather_data(trainer.rank)
            [0]
        """
        return self._strategy.one_per_data_rank(self._strategy.all_gather(value))

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
        result, problem = self.broadcast((attempt.result, attempt.problem))
        if attempt.error is not None:
            raise attempt.error
        if problem is not None:
            raise PacelineError(problem)
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
        environment = self._strategy.environment
        if self._starts_ranks or self.world_size == 1:
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
            raise PacelineError(f"rank {failures[0][0]} failed in what it does first: {failures[0][1]}")
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
    mine = [(n, str(attempt.error)) for n, kind in enumerate(kinds) if isinstance(attempt.error, kind)]
    for failed in all_gather(mine):
        for number, problem in failed:
            raise kinds[number](problem)
    return cast(T, attempt.result)
