"""Whether parameters of which several ranks hold a copy are the same on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...errors import listed
from ..tensors.sharding import shard_held
from .collectives import Collectives

_WORDS = {1: torch.int8, 2: torch.int16}
_AT_ONCE = 1 << 20  # small enough for a cache, large enough for an accelerator
_SHOWN = 6
_NONE = torch.iinfo(torch.int64).min
_MASK = (1 << 62) - 1  # so that its negative is a number too


class Copy(NamedTuple):
    """What this rank holds of a parameter, and other ranks too.

    Attributes:
        part: A plain tensor.
        shard: The number of the shard that it is; 0 where it is whole.
        shards: How many there are.
    """

    part: Tensor
    shard: int
    shards: int


def copies(ranks: Collectives, module: nn.Module, parts: Mapping[str, Tensor]) -> dict[str, Copy]:
    """By name, in the module's order, what other ranks hold too; tensors of other types are skipped.

    Args:
        ranks: Of the run.
        module: The user's.
        parts: What this rank holds of each parameter, by name.
    """
    found, world_size = {}, ranks.world_size
    for name, parameter in module.named_parameters():
        shard, count = shard_held(parameter, ranks.rank, world_size)
        if count < world_size and type(parts[name]) in (Tensor, nn.Parameter):
            found[name] = Copy(parts[name], shard, count)
    return found


def find_difference(ranks: Collectives, module: nn.Module, parts: Mapping[str, Tensor]) -> str | None:
    """Compare the copies of each parameter bit by bit, by a checksum. To be called on all ranks.

    One reduction of two numbers for each parameter and shard, which waits for the device.

    Args:
        ranks: Of the run.
        module: The user's.
        parts: What this rank holds of each parameter, by name.

    Returns:
        What differs, the same text on all ranks; None where all copies are equal.
    """
    held = copies(ranks, module, parts)
    if not held:
        return None
    mine = torch.stack([checksum(copy.part) for copy in held.values()]).cpu()
    shards = torch.tensor([copy.shard for copy in held.values()])
    places = torch.arange(len(held)), shards
    found = torch.full((2, len(held), max(copy.shards for copy in held.values())), _NONE)
    found[0][places], found[1][places] = mine, -mine
    highest, negated_lowest = ranks.all_reduce(found, "max")
    differ = ((highest != -negated_lowest) & (highest != _NONE)).any(1)
    if not differ.any():
        return None
    row = int(differ.nonzero()[0])
    everyone = ranks.all_gather((int(shards[row]), int(mine[row])))
    return (
        f"{_other_than_most(everyone).format([*held][row])}; "
        f"{int(differ.sum())} of {len(held)} parameters differ"
    )


def _other_than_most(values: list[tuple[int, int]]) -> str:
    """Which ranks have another checksum than most copies of their shard, else than the first of them.

    Args:
        values: Of each rank, the number of its shard and the checksum.
    """
    usual = {}
    for shard in dict(values):
        copies = Counter(value for value in values if value[0] == shard)
        usual[shard] = copies.most_common(1)[0][0]
    wrong = [rank for rank, value in enumerate(values) if value != usual[value[0]]]
    right = values.index(usual[values[wrong[0]][0]])
    shown = listed([*map(str, wrong)], _SHOWN)
    who = f"rank {shown} holds" if len(wrong) == 1 else f"ranks {shown} hold"
    return f"{who} another value of {{}} than rank {right}"


def checksum(tensor: Tensor) -> Tensor:
    """A sum of a tensor's bits as integers, each times an odd number of its place: an int64 scalar."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    plain = plain.detach().contiguous().flatten()
    words = plain.view(_WORDS.get(plain.element_size(), torch.int32))
    factors = (
        torch.arange(min(len(words), _AT_ONCE), dtype=torch.int32, device=words.device).mul_(2).add_(1)
    )
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for part in words.split(_AT_ONCE):
        total = total * 3 + (part * factors[: len(part)]).sum()
    return total & _MASK
