"""What dataloaders read: the dataset beneath their subsets, and which of its samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from ..seen import Seen
from ..tensor_facts import memory_of


@dataclass
class Source:
    """Samples of a dataset that is no subset of another.

    Attributes:
        base: The dataset.
        indices: Which of its samples; a range where it is all of them.
        chosen: Whether somebody has chosen indices.
    """

    base: Any
    indices: Any
    chosen: bool


def validations_of(seen: Seen) -> Iterator[tuple[str, Any]]:
    """Loaders of validation, without those that measure the training data on purpose."""
    if seen.settings.get("overfit_batches"):
        return
    for name, loader in seen.data.items():
        if name != "train" and "train" not in name.lower():
            yield name, loader


def size_of(dataset: Any) -> int | None:
    """The length of a map-style dataset; None where it has none."""
    if isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def sampler_of(loader: Any) -> Any:
    """What gives the order of a loader's samples; None where its batches are made in another way."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_sampler is None:
        return loader.sampler
    inner = getattr(loader.batch_sampler, "sampler", None)
    return inner if type(loader.batch_sampler) is BatchSampler else None


def is_in_order(loader: Any) -> bool:
    """Whether a loader reads its dataset from the first sample to the last."""
    return type(sampler_of(loader)) is SequentialSampler


def is_shuffled(loader: Any) -> bool:
    """Whether a loader reads its dataset in a random order."""
    return isinstance(sampler_of(loader), (RandomSampler, SubsetRandomSampler))


def sources_of(loader: Any) -> list[Source]:
    """The parts of datasets that a loader reads; none where its sampler does not tell."""
    if not isinstance(loader, DataLoader) or size_of(loader.dataset) is None:
        return []
    sampler = sampler_of(loader)
    total = size_of(loader.dataset)
    indices: Any = range(total or 0)
    if isinstance(sampler, SubsetRandomSampler):
        indices = list(sampler.indices)
    elif not isinstance(sampler, (SequentialSampler, RandomSampler)):
        return []
    return list(_beneath(loader.dataset, indices, isinstance(sampler, SubsetRandomSampler)))


def _beneath(dataset: Any, indices: Any, chosen: bool) -> Iterator[Source]:
    if isinstance(dataset, Subset):
        given = dataset.indices
        whole = isinstance(indices, range) and len(indices) == len(given)
        yield from _beneath(dataset.dataset, given if whole else [given[i] for i in indices], True)
    elif isinstance(dataset, ConcatDataset) and isinstance(indices, range):
        for part in dataset.datasets:
            yield from _beneath(part, range(size_of(part) or 0), chosen)
    else:
        yield Source(dataset, indices, chosen)


def shared_samples(one: Source, other: Source) -> int:
    """How many samples of ``other`` are in ``one`` too, by their indices or by where their rows lie."""
    if one.base is other.base:
        own = one.indices if isinstance(one.indices, range) else set(map(int, one.indices))
        return sum(int(index) in own for index in other.indices)
    mine, others = _table_of(one), _table_of(other)
    if mine is None or others is None:
        return 0
    step = mine.stride(0)
    apart = others.storage_offset() - mine.storage_offset()
    if memory_of(mine) != memory_of(others) or step != others.stride(0) or apart % step:
        return 0
    apart //= step
    if isinstance(one.indices, range) and isinstance(other.indices, range):
        return max(0, min(len(mine), len(others) + apart) - max(0, apart))
    own = set(map(int, one.indices))
    return sum(int(index) + apart in own for index in other.indices)


def _table_of(source: Source) -> Tensor | None:
    """The first tensor of a TensorDataset, where its rows lie apart from each other."""
    base = source.base
    first = base.tensors[0] if isinstance(base, TensorDataset) and base.tensors else None
    if first is None or first.layout is not torch.strided or first.dim() == 0 or not first.numel():
        return None
    return first if first.stride(0) >= first[0].numel() else None


def targets_of(dataset: Any) -> Tensor | None:
    """The labels of all samples in their order, where the dataset has them at hand."""
    if isinstance(dataset, Subset):
        below = targets_of(dataset.dataset)
        return None if below is None else below[torch.as_tensor(list(dataset.indices), dtype=torch.long)]
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        found: Any = dataset.tensors[1]
    else:
        found = getattr(dataset, "targets", getattr(dataset, "labels", None))
    if isinstance(found, list) and found and all(type(one) is int for one in found):
        found = torch.tensor(found)
    if not isinstance(found, Tensor) or found.dim() != 1 or found.dtype.is_floating_point:
        return None
    return found if len(found) == size_of(dataset) else None


def runs_of(labels: Tensor) -> int:
    """Into how many stretches of one label they fall."""
    return int((labels[1:] != labels[:-1]).sum()) + 1 if len(labels) else 0
