"""Which ranks compute with the same samples: those that split each layer between them."""

from __future__ import annotations

from typing import Any, TypeVar

from ..launch.environment import Environment

T = TypeVar("T")


class DataRanks:
    """The ranks of a run by the samples they compute with.

    Where layers are split over ``tensor_parallel_size`` ranks, so many neighbouring ranks compute with the
    same samples, and the samples of a step are divided among these groups: a group is one data rank. Else
    every rank is one.

    Attributes:
        environment: Of this process.
        tensor_parallel_size: How many ranks split each layer between them.

    Example:
        >>> import torch
        >>> ranks = DataRanks()
        >>> ranks.environment, ranks.tensor_parallel_size = Environment(torch.device("cpu"), 5, 8), 2
        >>> ranks.data_rank, ranks.data_world_size, ranks.tensor_rank
        (2, 4, 1)
        >>> ranks.one_per_data_rank([0, 1, 2, 3, 4, 5, 6, 7])
        [0, 2, 4, 6]
    """

    environment: Environment
    tensor_parallel_size: int = 1

    @property
    def data_rank(self) -> int:
        """Which part of each step's samples this rank computes with, from 0."""
        return self.environment.rank // self.tensor_parallel_size

    @property
    def data_world_size(self) -> int:
        """Among how many ranks, or groups of them, the samples of a step are divided."""
        return self.environment.world_size // self.tensor_parallel_size

    @property
    def tensor_rank(self) -> int:
        """The place of this rank among those that split each layer, from 0."""
        return self.environment.rank % self.tensor_parallel_size

    @property
    def data_group(self) -> Any:
        """The process group with one rank of each data rank, this one's; None: all ranks.

        At its first use to be called on all ranks.
        """
        return None

    def one_per_data_rank(self, everyone: list[T]) -> list[T]:
        """Of values of all ranks, such as ``all_gather`` returns, one of each data rank."""
        return everyone[:: self.tensor_parallel_size]
