"""Parameter groups for optimizers: no weight decay for some parameters, smaller rates for lower layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from .common.argument_checks import AMOUNT, PART, TEXT, TEXTS, check_arguments
from .errors import PacelineError, nearest

__all__ = [
    "decay_groups",
    "layer_groups",
]


def dimensions(parameter: nn.Parameter) -> int:
    """The dimensions of a parameter; of the whole one where a rank's part of it is flat."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def names_of_parameters(module: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Every name of each parameter: tied ones have several."""
    found: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found.setdefault(parameter, []).append(name)
    return found


def patterns(given: Any) -> Any:
    """One pattern or several as a list; what is neither stays, for the check to refuse."""
    if isinstance(given, str):
        return [given]
    return list(given) if isinstance(given, Iterable) else given


def _check_module(who: str, module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise PacelineError(
            f"{who} takes a module, whose parameters have names",
            code="wrong-object",
            got=type(module).__name__,
            fix=f"{who}(self, ...), or a part of it, without .parameters()",
        )


def decay_groups(
    module: nn.Module, weight_decay: float, *, no_decay: str | Sequence[str] = ("*.bias",), **settings: Any
) -> list[dict[str, Any]]:
    """Two groups: parameters with weight decay, and those without.

    Without are those of fewer than two dimensions (biases, norms) and those whose names match. Parameters
    that are not trained are in the group of their kind too: frozen ones get no update.

    Args:
        module: Its parameters are grouped, shared ones once.
        weight_decay: Of the first group.
        no_decay: A pattern of names, as in a shell, or several.
        **settings: Of both groups, such as ``lr``.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> groups = decay_groups(Net(), 0.1, lr=3e-4)
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(1, 0.1), (1, 0.0)]
        >>> optimizer = torch.optim.AdamW(groups)
    """
    _check_module("decay_groups", module)
    no_decay = patterns(no_decay)
    check_arguments("decay_groups", weight_decay=(weight_decay, AMOUNT), no_decay=(no_decay, TEXTS))
    kept: list[nn.Parameter] = []
    without: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        matches = any(fnmatchcase(name, pattern) for pattern in no_decay)
        (without if dimensions(parameter) < 2 or matches else kept).append(parameter)
    groups = [
        {"params": kept, "weight_decay": weight_decay, **settings},
        {"params": without, "weight_decay": 0.0, **settings},
    ]
    return [group for group in groups if group["params"]]


def layer_groups(
    module: nn.Module,
    lr: float,
    decay: float,
    *,
    layers: str,
    weight_decay: float = 0.0,
    no_decay: str | Sequence[str] = ("*.bias",),
) -> list[dict[str, Any]]:
    """Groups whose learning rate falls from the last layer to the first, for fine-tuning.

    Layer-wise decay as in BEiT (Bao et al. 2022, https://arxiv.org/abs/2106.08254): with n layers, layer i
    (from 0) has ``lr * decay ** (n - i)``; what is registered before the layers (embeddings) has
    ``lr * decay ** (n + 1)``, what is registered after them (a head) ``lr``.

    Args:
        module: Its parameters are grouped, shared ones once.
        lr: The rate of the head.
        decay: The factor from layer to layer, from 0 to 1.
        layers: The name of the ``ModuleList`` or ``Sequential`` that holds them, ``"encoder.layers"``.
        weight_decay: Of parameters with two dimensions or more whose names do not match ``no_decay``.
        no_decay: A pattern of names, as in a shell, or several.

    Raises:
        PacelineError: for arguments that are not right, and where there is no such list of layers.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)]), nn.Linear(2, 1))
        >>> groups = layer_groups(model, lr=0.1, decay=0.5, layers="1")
        >>> sorted({group["lr"] for group in groups})
        [0.025, 0.05, 0.1]
    """
    _check_module("layer_groups", module)
    no_decay = patterns(no_decay)
    check_arguments(
        "layer_groups",
        lr=(lr, AMOUNT),
        decay=(decay, PART),
        layers=(layers, TEXT),
        weight_decay=(weight_decay, AMOUNT),
        no_decay=(no_decay, TEXTS),
    )
    lists = {n: p for n, p in module.named_modules() if n and isinstance(p, (nn.ModuleList, nn.Sequential))}
    if layers not in lists:
        raise PacelineError(
            f"layer_groups: {type(module).__name__} has no list of layers {layers!r}",
            code="part-not-found",
            allowed=", ".join(lists) or "none",
            meant=nearest(layers, lists),
        )
    names = [f"{layers}.{name}." for name, _ in lists[layers].named_children()]
    count, layer = len(names), -1
    grouped: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        inside = [number for number, prefix in enumerate(names) if name.startswith(prefix)]
        layer = inside[0] if inside else layer if layer < 0 else count
        decays = dimensions(parameter) >= 2 and not any(fnmatchcase(name, pattern) for pattern in no_decay)
        grouped.setdefault((layer, decays), []).append(parameter)
    return [
        {"params": parameters, "lr": lr * decay ** (count - number), "weight_decay": weight_decay * decays}
        for (number, decays), parameters in grouped.items()
    ]
