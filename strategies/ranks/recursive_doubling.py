"""Collectives of small values on the host, by recursive doubling: log2(ranks) rounds of pairs.

Gloo's all-reduce and all-gather send values around a ring, in which each message waits for the one before:
right for large tensors, but a word of three numbers on 1,000 ranks would wait for 1,998 messages.

Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

MOST_BYTES = 1 << 15  # of what is reduced; above it a ring, which sends less, is faster
_OBJECTS = 1  # a tag; those of reductions are above it. Ranks that call different ones wait for each other
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}


class Round(NamedTuple):
    """What a rank does with one other.

    Attributes:
        peer: The other rank, in the group.
        sends: Whether this rank sends what it has so far.
        receives: Whether it receives.
        combines: Whether what it receives is combined with what it has; else it is the result.
    """

    peer: int
    sends: bool = True
    receives: bool = True
    combines: bool = True


@cache
def rounds_of(rank: int, size: int) -> tuple[Round, ...]:
    """The rounds of a rank.

    In each round pairs exchange what they have. Ranks above the largest power of two give their value to
    one below it first, and receive the result from it in the end.

    Example:
        >>> [a.peer for a in rounds_of(0, 8)]
        [1, 2, 4]
    """
    core = 1 << (size.bit_length() - 1)
    if rank >= core:
        return Round(rank - core, receives=False), Round(rank - core, sends=False, combines=False)
    doubling = [Round(rank ^ (1 << bit)) for bit in range(core.bit_length() - 1)]
    if rank + core < size:
        above = rank + core
        return Round(above, sends=False), *doubling, Round(above, receives=False)
    return tuple(doubling)


def all_reduce(values: Tensor, op: str, group: dist.ProcessGroup) -> Tensor:
    """Reduce small values over the ranks of a group. To be called on all of them.

    The result has the same bits on all ranks: both of a pair combine the same two values, the lower
    rank's first.

    Args:
        values: On the host, contiguous, of one shape and dtype on all ranks. They are not changed.
        op: ``sum``, ``min`` or ``max``, element by element; a NaN stays.
        group: Of gloo.
    """
    combine, tag, rank = OPERATIONS[op], _OBJECTS + 1 + values.nbytes, dist.get_rank(group)
    for peer, sends, receives, combines in _rounds(group):
        received = torch.empty_like(values)
        sent = dist.isend(values, group=group, group_dst=peer, tag=tag) if sends else None
        if receives:
            dist.recv(received, group=group, group_src=peer, tag=tag)
        if sent is not None:
            sent.wait()
        if receives and combines:
            values = combine(values, received) if rank < peer else combine(received, values)
        elif receives:
            values = received
    return values


def all_gather(value: Any, group: dist.ProcessGroup) -> list[Any]:
    """The objects of all ranks of a group, in their order, on each. To be called on all of them.

    As many bytes as with a ring, in few messages.

    Args:
        value: Can be pickled.
        group: Of gloo, of ranks that trust each other.
    """
    held = {dist.get_rank(group): pickle.dumps(value)}
    for peer, sends, receives, combines in _rounds(group):
        sent = _send(held, peer, group) if sends else []
        if receives:
            theirs = _receive(peer, group)
            held = held | theirs if combines else theirs
        for work in sent:
            work.wait()
    return [pickle.loads(held[rank]) for rank in range(len(held))]


def _rounds(group: dist.ProcessGroup) -> tuple[Round, ...]:
    return rounds_of(dist.get_rank(group), dist.get_world_size(group))


def _send(held: dict[int, bytes], peer: int, group: dist.ProcessGroup) -> list[dist.Work]:
    content = torch.frombuffer(bytearray(pickle.dumps(held)), dtype=torch.uint8)
    works = [
        dist.isend(tensor, group=group, group_dst=peer, tag=_OBJECTS)
        for tensor in (torch.tensor([content.numel()], device="cpu"), content)
    ]
    return [work for work in works if work is not None]


def _receive(peer: int, group: dist.ProcessGroup) -> dict[int, bytes]:
    size = torch.empty(1, dtype=torch.int64, device="cpu")
    dist.recv(size, group=group, group_src=peer, tag=_OBJECTS)
    content = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    dist.recv(content, group=group, group_src=peer, tag=_OBJECTS)
    found: dict[int, bytes] = pickle.loads(content.numpy().tobytes())
    return found
