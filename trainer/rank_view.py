"""The ranks of a run as a Trainer shows them, and its calls on all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .loops.context import RunContext

T = TypeVar("T")


class RankView:
    """The ranks of a run."""

    _run: RunContext

    @property
    def rank(self) -> int:
        """The number of this process among all, from 0."""
        return self._run.ranks.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._run.ranks.world_size

    @property
    def data_rank(self) -> int:
        """Which part of each step's samples this rank computes with: ``rank``, unless layers are split.

        Example:
            >>> trainer.data_rank, trainer.data_world_size, trainer.tensor_rank
            (0, 1, 0)
        """
        return self._run.ranks.data_rank

    @property
    def data_world_size(self) -> int:
        """Among how many ranks a step's samples are divided; ranks that split each layer count once."""
        return self._run.ranks.data_world_size

    @property
    def tensor_rank(self) -> int:
        """The place of this rank among those that split each layer between them, from 0."""
        return self._run.ranks.tensor_rank

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""
        return self._run.ranks.is_global_zero

    def barrier(self) -> None:
        """Wait for all ranks.

        Example:
            >>> trainer.barrier()
        """
        self._run.ranks.barrier()

    def broadcast(self, value: T, source: int = 0) -> T:
        """The value that rank ``source`` has, on every rank. Any object that can be pickled.

        Example:
            >>> trainer.broadcast({"vocabulary": 32000})
            {'vocabulary': 32000}
        """
        return self._run.ranks.broadcast(value, source)

    def all_gather(self, value: Any) -> list[Any]:
        """One value of every data rank, in their order, on each. Tensors are of one shape.

        These are all ranks, but for those that split each layer between them: they have the same samples,
        and count once.

        Example:
            >>> trainer.all_gather(trainer.rank)
            [0]
        """
        return self._run.ranks.gather_data(value)

    def on_rank_zero(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on rank 0, on every rank; it is called there alone.

        Raises:
            PacelineError: on every rank, where it raised on rank 0.

        Example:
            >>> trainer.on_rank_zero(lambda: "read once")
            'read once'
        """
        return self._run.ranks.on_rank_zero(function)

    def main_process_first(self, per_node: bool = False) -> AbstractContextManager[None]:
        """What is inside runs on rank 0 while the others wait, then on the others.

        Args:
            per_node: On the first rank of each machine first; for files that machines do not share.

        Raises:
            PacelineError: on the others, when what is inside failed on the first.

        Example:
            >>> with trainer.main_process_first():
            ...     vocabulary = {"a": 0}  # downloaded by rank 0, read from its cache by the others
        """
        return self._run.ranks.main_process_first(per_node)
