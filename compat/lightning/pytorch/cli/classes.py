"""Types of optimizers and schedules on a command line, and objects of a ``class_path`` with arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, get_type_hints

import torch
from jsonargparse import Namespace
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .names import with_our_names


class ReduceLROnPlateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """torch's, with the name of the value that it watches.

    Args:
        optimizer: The optimizer.
        monitor: The name of a logged value.
        *args: As torch's.
        **kwargs: As torch's.
    """

    def __init__(self, optimizer: Optimizer, monitor: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, *args, **kwargs)
        self.monitor = monitor


LRSchedulerTypeTuple = (LRScheduler, ReduceLROnPlateau)
LRSchedulerTypeUnion = LRScheduler | ReduceLROnPlateau
LRSchedulerType = type[LRScheduler] | type[ReduceLROnPlateau]
OptimizerCallable = Callable[[Iterable[Any]], Optimizer]
"""The type of a constructor's argument that makes an optimizer of parameters."""
LRSchedulerCallable = Callable[[Optimizer], LRScheduler | ReduceLROnPlateau]
"""The same for a schedule of an optimizer."""


def instantiate_class(args: Any, init: dict[str, Any]) -> Any:
    """An object of the class that a configuration names.

    Args:
        args: What the constructor gets first: one value, or a tuple of several.
        init: ``{"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}``.

    Example:
        >>> instantiate_class(4, {"class_path": "torch.nn.Linear", "init_args": {"out_features": 2}})
        Linear(in_features=4, out_features=2, bias=True)
    """
    module, _, name = with_our_names(init["class_path"]).rpartition(".")
    made = getattr(import_module(module), name)
    return made(*(args if isinstance(args, tuple) else (args,)), **(init.get("init_args") or {}))


def adding_class(kind: type) -> Callable[[Any], dict[str, Any]]:
    """A function that puts the path of a class beside its arguments."""

    def with_class(arguments: Any) -> dict[str, Any]:
        given = arguments.as_dict() if isinstance(arguments, Namespace) else dict(arguments or {})
        return {"class_path": f"{kind.__module__}.{kind.__name__}", "init_args": given}

    return with_class


def made_by(maker: Any, base: type) -> type:
    """The class of what a class or a function makes; ``base`` where a function does not say."""
    if maker is None or isinstance(maker, type):
        return maker or base
    try:
        found = get_type_hints(maker).get("return")
    except NameError:  # of a class that is known where the function was written
        found = None
    return found if isinstance(found, type) else base
