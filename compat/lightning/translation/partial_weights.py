"""Weights of a module with ``strict_loading = False``, whose ``state_dict`` gives some of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn


def weights_of(module: Any, trained: Collection[Tensor], *args: Any, **kwargs: Any) -> Any:
    """What a checkpoint holds of a module's weights: its ``state_dict``, and what a resume needs beside it.

    Frozen parameters that its ``state_dict`` skips are none of that: the constructor makes them.

    Args:
        module: The user's.
        trained: Parameters that are frozen for the moment alone.
        *args: As ``state_dict`` takes them.
        **kwargs: The same.
    """
    given = module.state_dict(*args, **kwargs)
    if module.strict_loading:
        return given
    whole = nn.Module.state_dict(module, *args, **kwargs)
    if not whole.keys() >= given.keys():  # its names are other ones
        return whole
    known = {id(one) for one in trained}
    frozen = {
        name
        for name, one in module.named_parameters(remove_duplicate=False)
        if not (one.requires_grad or id(one) in known)
    }
    return {name: one for name, one in whole.items() if name in given or name not in frozen}


def load_weights_of(module: Any, values: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Load what ``weights_of`` gave."""
    if module.strict_loading:
        return module.load_state_dict(values, *args, **kwargs)
    if module.state_dict().keys() <= values.keys():
        return module.load_state_dict(values, strict=False)
    return nn.Module.load_state_dict(module, values)
