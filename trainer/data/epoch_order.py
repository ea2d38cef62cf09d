"""The order of one epoch, and what a loader is to read of it."""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from ..rng import cpu_state, generators_of, order_seed, seed_for_sample, seed_generator, set_cpu_state
from .batch_plan import Layout, Piece
from .seeded_loader import SamplePosition, SeededIndex, SeededIndices


@dataclass(frozen=True)
class EpochOrder:
    """An epoch's order, the same on every rank.

    Args:
        items: Sample indices; or units, which are not cut: the batches of a batch sampler, the items of a
            loader that does not collate.
        total: How many of them are read.
        collates: Whether the loader makes batches of samples.
        data_epoch: What ``set_epoch`` of the dataset is given: 0 throughout, where the order is fixed.
    """

    items: Sequence[Any]
    total: int
    layout: Layout
    seed: int
    epoch: int
    units: bool
    collates: bool
    data_epoch: int

    @cached_property
    def sizes(self) -> Sequence[int] | None:
        """The samples in each unit; None for samples."""
        if not self.units:
            return None
        return [len(unit) for unit in self.items] if self.collates else [1] * len(self.items)

    def start_of(self, position: int) -> int:
        """The item at which ``position``, a count of samples, lies."""
        if self.sizes is None:
            return position
        return bisect_left(list(accumulate(self.sizes, initial=0)), position)

    def samples_of(self, piece: Piece) -> list[Any]:
        """The dataset indices in a micro-batch."""
        items = list(self.items[piece.start : piece.start + piece.size])
        return [index for unit in items for index in unit] if self.units and self.collates else items

    def indices(self, start: int, seeded: bool, compares: bool = False) -> Iterator[Any]:
        """What the loader is to read from an item on, micro-batch by micro-batch, each with its position.

        Args:
            start: The first item of ``items`` to read, from 0.
            seeded: Whether a ``SeededDataset`` takes single items.
            compares: With the first micro-batch read the sample at ``start`` too, which all ranks read.
        """
        starts = list(accumulate(self.sizes or (), initial=0))
        first = start
        probe = None
        if compares and self.collates and start < self.total:
            samples = [*self.items[start]] if self.units else [self.items[start]]
            place = SamplePosition(self.seed, self.epoch, starts[start] if self.units else start)
            probe = (samples[0], place) if samples else None
        for advance, pieces in self.layout.epoch(self.total, start):
            for piece in pieces:
                at = piece.start if piece.size else first
                if not self.units:
                    part = self.items[at : at + max(piece.size, 1)]
                    yield self._seeded(list(part), SamplePosition(self.seed, self.epoch, at), probe)
                    probe = None
                    continue
                origin, unit = SamplePosition(self.seed, self.epoch, starts[at]), self.items[at]
                if self.collates:
                    yield self._seeded(list(unit), origin, probe)
                    probe = None
                else:
                    yield SeededIndex(unit, origin, self.data_epoch) if seeded else unit
            first += advance

    def _seeded(self, indices: list[Any], origin: SamplePosition, probe: Any) -> SeededIndices:
        seeded = SeededIndices(indices)
        seeded.origin, seeded.data_epoch, seeded.probe = origin, self.data_epoch, probe
        return seeded


def drawn(loader: DataLoader[Any], sampler: Any, units: bool, seed: int, epoch: int) -> Sequence[Any]:
    """All that a loader's sampler gives in an epoch, under that epoch's seed: the same on every rank.

    Args:
        loader: Whose sampler or batch sampler it is.
        sampler: Gives sample indices, or units.
        units: Whether it gives units.
        seed: The run's.
        epoch: From 0.

    Returns:
        Whole numbers as an array of 8 bytes each, for data sets of any size; else a list.
    """
    seed = order_seed(seed, epoch)
    inner = getattr(loader.batch_sampler, "sampler", None)
    # The sampler of a batch sampler that was given is not loader.sampler; none is set twice.
    owners = (loader, loader.dataset, loader.sampler, loader.batch_sampler, inner)
    for owner in {id(o): o for o in owners}.values():
        set_epoch = getattr(owner, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
    before = cpu_state()
    try:
        seed_for_sample(seed)
        for generator in generators_of(loader, loader.sampler, loader.batch_sampler):
            seed_generator(generator, seed)
        over_all_ranks = isinstance(sampler, DistributedSampler)
        # An iterating DataLoader draws its workers' seed first: so do we, and the order is
        # the one that the loader itself would give under this seed.
        items = iter(sampler) if units and not over_all_ranks else None
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if over_all_ranks:
            return _over_all_ranks(sampler)
        return _collected(iter(sampler) if items is None else items, units)
    finally:
        set_cpu_state(before)


def _collected(items: Iterator[Any], units: bool) -> Sequence[Any]:
    first = next(items, None)
    if first is None:
        return ()
    if units or type(first) is not int:
        return list(chain([first], items))
    return array("q", chain([first], items))


def _over_all_ranks(sampler: DistributedSampler[Any]) -> Sequence[int]:
    """A DistributedSampler's order before it was cut among ranks, its padding dropped."""
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank = 1, 0
    whole.total_size = whole.num_samples = len(sampler.dataset)  # type: ignore[arg-type]
    return array("q", iter(whole))
