"""Giving values to a module that was built on the meta device, part by part, in any order."""

from __future__ import annotations

import math
import zlib

import torch
from torch import nn

from ...errors import PacelineError

_RESETS = ("reset_parameters", "_reset_parameters")


def is_on_meta(module: nn.Module) -> bool:
    """Whether any parameter or buffer has no values yet."""
    return any(t.is_meta for t in (*module.parameters(), *module.buffers()))


def materialise(module: nn.Module, within: nn.Module | None = None, *, alone: bool = False) -> None:
    """Give every meta parameter and buffer memory on the CPU, and initial values.

    Each part that owns some is initialised by its own ``reset_parameters()``, under a seed of the global
    one and the part's name: the values do not depend on the order or the number of ranks. Inner parts
    come first, as they do in a constructor: an outer one may have more to say about them.

    Args:
        module: The whole module: names within it are part of the seeds. Changed in place.
        within: Only the parts of this submodule.
        alone: Only what this submodule owns itself.

    Raises:
        PacelineError: for a part that owns parameters or buffers and does not initialise them.
    """
    whole = within or module
    chosen = {id(whole)} if alone else {id(part) for part in whole.modules()}
    made: dict[int, nn.Parameter] = {}
    kept: list[nn.Parameter] = []  # an id is only good while its object lives
    fresh: list[tuple[nn.Module, str, str]] = []
    for name, part in reversed(list(module.named_modules())):
        if id(part) not in chosen:
            continue
        before = len(fresh)
        for key, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            if not parameter.is_meta:
                continue
            fresh.append((part, name, key))
            if id(parameter) not in made:  # tied parameters stay tied
                made[id(parameter)] = nn.Parameter(_unfilled(parameter), parameter.requires_grad)
                kept.append(parameter)
            setattr(part, key, made[id(parameter)])
        for key, buffer in list(part.named_buffers(recurse=False, remove_duplicate=False)):
            if buffer.is_meta:
                setattr(part, key, _unfilled(buffer))
                fresh.append((part, name, key))
        if len(fresh) > before:
            _initialise(part, name)
    for part, name, key in fresh:
        if bool(getattr(part, key).isnan().any()):
            raise PacelineError(
                f"{name or type(part).__name__}.reset_parameters() does not fill {key}, which "
                "configure_model built on the meta device",
                code="weights-missing",
                got=f"{key} of {type(part).__name__}",
                fix=f"fill it in {type(part).__name__}.reset_parameters(self), as its __init__ does",
            )


def _unfilled(like: torch.Tensor) -> torch.Tensor:
    """Memory on the CPU, of NaN where there is one: what nobody fills can be seen."""
    nan = math.nan if like.is_floating_point() or like.is_complex() else 0
    return torch.full_like(like, nan, device="cpu", requires_grad=False)


def _initialise(part: nn.Module, name: str) -> None:
    reset = next((getattr(part, r) for r in _RESETS if callable(getattr(part, r, None))), None)
    if reset is None:
        raise PacelineError(
            f"{name or type(part).__name__} was built by configure_model on the meta device, and cannot "
            "initialise its own parameters and buffers",
            code="weights-missing",
            got=f"{type(part).__name__} without reset_parameters()",
            fix=f"write {type(part).__name__}.reset_parameters(self), which fills them",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed() ^ zlib.crc32(name.encode()))
        reset()
