"""The datasets of a mixture: what they may be, and how they are shuffled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ....common.argument_checks import ABOVE_ZERO, COUNT_OR_NONE, SEED, check_arguments
from ....errors import PacelineError

_CACHED = 65_536  # indices, for datasets so small that these are more than four passes


def order_of(length: int) -> Any:
    """Gives the permutation of a dataset for the seed of a pass; the newest ones are cached."""

    @lru_cache(maxsize=max(4, _CACHED // length))
    def of(seed: int) -> Tensor:
        return torch.randperm(length, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)

    return of


def set_epoch_of(dataset: Any, epoch: int) -> None:
    """Call its ``set_epoch``, where it has one."""
    if callable(set_epoch := getattr(dataset, "set_epoch", None)):
        set_epoch(epoch)


def is_stream(dataset: Any) -> bool:
    """Whether a dataset can only be iterated."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def keeps_position(dataset: Any) -> bool:
    """Whether a dataset can be saved in the middle of an iteration."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


def weighted(given: Any) -> tuple[list[Any], list[Any]]:
    """The datasets and their weights.

    Raises:
        PacelineError: for anything but a mapping or pairs.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
    ):
        raise PacelineError(
            "Mixture takes datasets with their weights",
            code="mixture-dataset",
            got=type(given).__name__,
            allowed="Mixture({one: 0.7, other: 0.3}), or pairs: Mixture([(one, 0.7), (other, 0.3)])",
        )
    return [dataset for dataset, _ in pairs], [weight for _, weight in pairs]


def checked_datasets(given: Any, samples: Any, seed: Any) -> tuple[list[Any], list[float]]:
    """The datasets and their weights, of which each was looked at.

    Raises:
        PacelineError: naming what is not right.
    """
    datasets, weights = weighted(given)
    arguments = {f"weight of dataset {i}": (weight, ABOVE_ZERO) for i, weight in enumerate(weights)}
    check_arguments("Mixture", samples=(samples, COUNT_OR_NONE), seed=(seed, SEED), **arguments)
    if not datasets:
        raise PacelineError("Mixture takes at least one dataset", code="mixture-dataset", got="none")
    for number, dataset in enumerate(datasets):
        if isinstance(dataset, DataLoader) or not hasattr(
            dataset, "__iter__" if is_stream(dataset) else "__len__"
        ):
            raise PacelineError(
                "Mixture takes datasets, whose items are samples",
                code="mixture-dataset",
                got=f"a {type(dataset).__name__} as dataset {number}",
                fix="mix the datasets and give the Mixture to one DataLoader; CombinedLoader takes a batch "
                "of each of several loaders in a step",
            )
        if not is_stream(dataset) and not len(dataset):
            raise PacelineError(f"dataset {number} of the Mixture has no samples", code="mixture-dataset")
    return datasets, [float(weight) for weight in weights]
