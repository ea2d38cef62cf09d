"""Sharding a part whose parameters have several dtypes: ``fully_shard`` takes one dtype at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import PacelineError
from ..trained import TrainedChange

Counts = Callable[[nn.Parameter], bool]


def shard_by_dtype(
    whole: nn.Module, part: nn.Module, shard: Callable[[nn.Module, torch.dtype | None], Any], counts: Counts
) -> None:
    """Shard ``part``, after those of its submodules whose own parameters have another dtype.

    Most of the part stays together. What is sharded by itself must be called by its own ``forward``, so
    parameters of ``part`` itself and tied ones stay with it.

    Args:
        whole: The whole module, for names and ties.
        part: A part of it, or a module around it; what is sharded already is left alone.
        shard: Shards a module with what is not sharded yet in it, of this dtype; None where none counts.
        counts: Whether a parameter's dtype matters: not of frozen ones, nor of what is sharded already.

    Raises:
        PacelineError: naming parameters of several dtypes that must stay together.
    """
    main = _main_dtype(whole, part, counts)
    for inner in reversed([*part.modules()]):  # inner ones first
        own = [p for holder, p in _held(inner, inner, counts) if holder is inner]
        if inner is not part and own and all(p.dtype != main for p in own):
            shard_by_dtype(whole, inner, shard, counts)
    shard(part, main)


def refuse_several_dtypes(parts: Sequence[nn.Module], change: TrainedChange) -> None:
    """See that what is trained now, and is sharded together, has one dtype.

    Args:
        parts: The modules that were sharded.
        change: What is trained otherwise than before.

    Raises:
        PacelineError: naming what was unfrozen beside parameters of another dtype.
    """
    sharded = {id(part) for part in parts}

    def of_group(module: nn.Module) -> Iterator[nn.Parameter]:
        yield from module.parameters(recurse=False)
        for child in module.children():
            if id(child) not in sharded:
                yield from of_group(child)

    for part in parts:
        dtypes = {parameter.dtype for parameter in of_group(part) if parameter.requires_grad}
        if len(dtypes) > 1:
            raise PacelineError(
                "what was unfrozen is sharded together with parameters of another dtype",
                code="module-not-shardable",
                got=f"{change} ({', '.join(sorted(str(d).removeprefix('torch.') for d in dtypes))})",
                fix="the callback Freeze(patterns, until=...) has them apart from the start; or one dtype; "
                "or strategy='ddp'",
            )


def _main_dtype(whole: nn.Module, part: nn.Module, counts: Counts) -> torch.dtype | None:
    """The dtype of most of the part, or of what cannot be sharded apart from it."""
    held = [*_held(part, part, counts)]
    sizes: Counter[torch.dtype] = Counter()
    for _, parameter in held:
        sizes[parameter.dtype] += parameter.numel()
    if len(sizes) < 2:
        return next(iter(sizes), None)
    holders: dict[int, set[int]] = {}
    for holder, parameter in _held(whole, whole, counts):
        holders.setdefault(id(parameter), set()).add(id(holder))
    of_one: dict[int, set[torch.dtype]] = {}
    for holder, parameter in held:
        of_one.setdefault(id(holder), set()).add(parameter.dtype)
    together = [
        p for holder, p in held if holder is part or len(holders[id(p)]) > 1 or len(of_one[id(holder)]) > 1
    ]
    dtypes = {p.dtype for p in together}
    if len(dtypes) > 1:
        _refuse(whole, together)
    return next(iter(dtypes), sizes.most_common(1)[0][0])


def _held(part: nn.Module, holder: nn.Module, counts: Counts) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """Parameters that count, each with the innermost module around it that is called."""
    for parameter in part.parameters(recurse=False):
        if counts(parameter):
            yield holder, parameter
    for child in part.children():
        is_container = type(child).forward is nn.Module.forward
        yield from _held(child, holder if is_container else child, counts)


def _refuse(whole: nn.Module, together: list[nn.Parameter]) -> None:
    names = {id(p): name for name, p in whole.named_parameters()}
    first: dict[torch.dtype, nn.Parameter] = {}
    for parameter in together:
        first.setdefault(parameter.dtype, parameter)
    shown = [f"{names[id(p)]} ({str(dtype).removeprefix('torch.')})" for dtype, p in first.items()]
    raise PacelineError(
        "parameters that are sharded together must have one dtype, and these cannot be apart: they are of "
        "one module, or tied",
        code="module-not-shardable",
        got=", ".join(shown),
        fix="give them one dtype, or put those of one dtype into a submodule that uses them in its forward",
    )
