"""One name for a weight, whether or not a part of the module is compiled or recomputes its activations."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import Tensor, nn

COMPILED, _RECOMPUTED = "_orig_mod", "_checkpoint_wrapped_module"
"""What ``torch.compile(part)`` and torch's ``checkpoint_wrapper(part)`` call the part that they wrap."""


def plain_name(name: str) -> str:
    """The name without what wraps a part: ``net._orig_mod.0.weight`` is ``net.0.weight``."""
    if COMPILED not in name and _RECOMPUTED not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in (COMPILED, _RECOMPUTED))


def plain_names_in(text: str) -> str:
    """The text with plain names wherever it has the name of a weight."""
    return re.sub(rf"\b(?:{COMPILED}|{_RECOMPUTED})\.", "", text)


class PlainNames(nn.Module):
    """A module whose parameters, buffers and state dict have plain names; it loads either kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_give_plain_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_take_plain_names)  # type: ignore[no-untyped-call]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As ``nn.Module`` has it, with the names that parameters have where nothing is wrapped.

        Example:
            >>> module = Net()
            >>> module.layer = torch.compile(module.layer)
            >>> [name for name, _ in module.named_parameters()]
            ['layer.weight', 'layer.bias']
        """
        return ((plain_name(name), value) for name, value in super().named_parameters(*args, **kwargs))

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """As ``nn.Module`` has it, with the names that buffers have where nothing is wrapped.

        Example:
            >>> module = Net()
            >>> module.norm = torch.compile(nn.BatchNorm1d(2))
            >>> [name for name, _ in module.named_buffers()]
            ['norm.running_mean', 'norm.running_var', 'norm.num_batches_tracked']
        """
        return ((plain_name(name), value) for name, value in super().named_buffers(*args, **kwargs))


def _rename(values: MutableMapping[str, Any], names: dict[str, str]) -> None:
    """Give these entries other names, in place; the order stays."""
    if all(old == new for old, new in names.items()):
        return
    renamed = {names.get(name, name): value for name, value in values.items()}
    values.clear()
    values.update(renamed)


def _give_plain_names(module: nn.Module, values: Any, prefix: str, metadata: Any) -> None:
    names = {name: prefix + plain_name(name[len(prefix) :]) for name in values if name.startswith(prefix)}
    _rename(values, names)


def _take_plain_names(module: nn.Module, values: Any, prefix: str, *_: Any) -> None:
    """A state dict of either kind has the names that ``nn.Module`` looks for."""
    paths = [path for path, _ in module.named_modules(remove_duplicate=False)]
    # What recomputes gives its state dict plain names, and takes them, by itself.
    parts = {plain_name(path): path.replace(f".{_RECOMPUTED}", "") for path in paths}
    names = {}
    for name in values:
        if name.startswith(prefix):
            path, dot, last = plain_name(name[len(prefix) :]).rpartition(".")
            names[name] = prefix + parts.get(path, path) + dot + last
    _rename(values, names)
