"""The rows of a loader, as tables of inputs and targets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...callbacks.checks.tensor_facts import batch_facts, tensors_in
from ...trainer.rng import untouched

_MOST_ROWS = 20000
_MOST_NUMBERS = 50_000_000


@dataclass
class Table:
    """Rows that a loader has given.

    Attributes:
        inputs, targets: By their place in a batch; of several shapes only the most frequent one.
        sizes: Rows of each batch.
        is_whole: Whether it is all that the loader gives in an epoch.
    """

    inputs: dict[str, Tensor] = field(default_factory=dict)
    targets: dict[str, Tensor] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    is_whole: bool = False

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(self.sizes)

    def numbers(self) -> Tensor | None:
        """The floating input with the most numbers in a row, as (rows, numbers)."""
        wide = [
            one for one in self.inputs.values() if one.dtype.is_floating_point or one.dtype == torch.uint8
        ]
        best = max(wide, key=lambda one: one[0].numel() if len(one) else 0, default=None)
        return None if best is None or best.dim() < 2 else best.reshape(len(best), -1).float()

    def tokens(self) -> Tensor | None:
        """The input of whole numbers with the longest rows."""
        found = [one for one in self.inputs.values() if is_whole_type(one) and one.dim() == 2]
        return max(found, key=lambda one: one.shape[1], default=None)

    def classes(self) -> Tensor | None:
        """One class for each row, where a target has that."""
        for one in self.targets.values():
            flat = one.reshape(len(one), -1)
            if is_whole_type(one) and one.dtype != torch.uint8 and flat.shape[1] == 1:
                return flat[:, 0].long()
            is_one = one.dtype.is_floating_point and flat.shape[1] == 1 and len(flat) > 0
            if is_one and bool((flat == flat.round()).all()) and len(flat.unique()) == 2:
                return flat[:, 0].long()
        return None

    def values(self) -> Tensor | None:
        """The target of floating numbers, as (rows, numbers)."""
        for one in self.targets.values():
            if one.dtype.is_floating_point and len(one):
                return one.reshape(len(one), -1)
        return None


def is_whole_type(tensor: Tensor) -> bool:
    """Whether its values are whole numbers by type."""
    return not tensor.dtype.is_floating_point and not tensor.is_complex() and tensor.dtype != torch.bool


def read_table(batches: Iterable[Any], known: frozenset[str], seconds: float) -> Table:
    """Read a loader for one epoch, or for a time.

    Args:
        batches: The loader.
        known: Places of tensors that losses took as their target.
        seconds: The longest time.
    """
    table, until, numbers = Table(), time.monotonic() + seconds, 0
    found: dict[str, list[Tensor]] = {}
    targets: set[str] = set()
    with untouched(torch.device("cpu")):
        for batch in _while(batches, until, table):
            tensors = {p: t.detach().cpu() for p, t in tensors_in(batch) if t.dim() and not t.is_sparse}
            rows = next((len(one) for one in tensors.values()), 0)
            targets |= batch_facts(batch, 0, known, light=True).targets.keys()
            table.sizes.append(rows)
            for place, one in tensors.items():
                found.setdefault(place, []).append(one)
                numbers += one.numel()
            if table.rows > _MOST_ROWS or numbers > _MOST_NUMBERS:
                table.is_whole = False
                break
    for place, parts in found.items():
        shapes = [part.shape[1:] for part in parts]
        usual = max(set(shapes), key=shapes.count)
        one = torch.cat([part for part in parts if part.shape[1:] == usual])
        (table.targets if place in targets else table.inputs)[place] = one
    return table


def _while(batches: Iterable[Any], until: float, table: Table) -> Iterator[Any]:
    for batch in batches:
        yield batch
        if time.monotonic() > until:
            return
    table.is_whole = True
