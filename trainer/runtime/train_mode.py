"""Train and eval modes: put back exactly as the user left them, submodule by submodule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode for every submodule inside; afterwards each one's own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def trainable_in_eval_mode(module: nn.Module) -> list[str]:
    """Names of the outermost trainable submodules that are in eval mode."""
    found: list[str] = []
    for name, part in module.named_modules():
        inside = any(name.startswith(outer + ".") or not outer for outer in found)
        if not part.training and not inside and any(p.requires_grad for p in part.parameters()):
            found.append(name)
    return [name or type(module).__name__ for name in found]
