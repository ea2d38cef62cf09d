"""Of which kind a class is that a config names, and what a function is annotated to return.

A config says what is called, with which arguments. What is called is therefore of the kind that its place
needs, and this is known before it is called: by a class's bases, by a function's return annotation.
"""

from __future__ import annotations

import collections.abc
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from functools import partial
from types import BuiltinFunctionType, ModuleType, NoneType, SimpleNamespace
from typing import Any, TypeVar, get_args, get_origin

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..schedules import RateSchedule
from ..trainer.datamodule import DataModule
from .signatures import kinds_of

_VALUES = frozenset(
    ("builtins", "collections", "datetime", "decimal", "fractions", "pathlib", "random", "uuid")
)
"""Modules of Python whose classes only hold values."""
_ARITHMETIC = frozenset(("math", "operator", "_operator"))
_TENSORS = frozenset(("tensor", "as_tensor", "zeros", "ones", "full", "arange", "linspace", "eye"))
"""Functions of torch in C, which have no annotation, that make a tensor of values."""


def acts_by_itself(target: Any) -> bool:
    """Whether this is a class or function of Python's own that does more than hold or compute a value.

    No config needs one: starting programs, opening files and running code are what they do.

    Example:
        >>> import os
        >>> acts_by_itself(os.system), acts_by_itself(dict), acts_by_itself(torch.nn.ReLU)
        (True, False, False)
    """
    own = _unwrapped(target)
    owner = getattr(own, "__self__", None)  # of a method; of a function in C its module
    if owner is not None and not isinstance(owner, ModuleType):
        owner = owner if isinstance(owner, type) else type(owner)
    allowed = _VALUES if isinstance(own, type) else _ARITHMETIC
    holder = getattr(own, "__objclass__", type(own))  # of what names no module
    places = [getattr(own, "__module__", None) or holder.__module__, getattr(owner, "__module__", None)]
    roots = {place.partition(".")[0] for place in places if isinstance(place, str)}
    return any(root in sys.stdlib_module_names and root not in allowed for root in roots)


def returned(function: Callable[..., Any]) -> tuple[Any, ...]:
    """The types that a function is annotated to return, without None; () where that says nothing.

    Example:
        >>> def points(n: int) -> "Dataset | None": ...
        >>> returned(points), returned(lambda n: n)
        ((<class 'torch.utils.data.dataset.Dataset'>,), ())
    """
    own = _unwrapped(function)
    name = getattr(own, "__name__", "")
    if isinstance(own, BuiltinFunctionType) and name in _TENSORS and getattr(torch, name) is own:
        return (Tensor,)
    if not hasattr(own, "__annotations__"):  # an object that can be called
        own = _calls_of(type(own))[0]
    names = getattr(inspect.unwrap(own), "__globals__", {})
    owner = getattr(own, "__self__", None)
    annotation = getattr(own, "__annotations__", {}).get("return", Any)
    one = SimpleNamespace(__annotations__={"found": annotation})
    try:
        found = typing.get_type_hints(one, names)["found"]
    except Exception:  # names that exist for type checkers only
        return ()
    if (isinstance(found, TypeVar) or found is typing.Self) and isinstance(owner, type):
        found = owner  # a class method that makes an object of its class
    return tuple(kind for kind in kinds_of(found) if kind not in (Any, None, NoneType, object))


def is_subclass(kind: Any, bases: type | tuple[type, ...]) -> bool:
    """Whether a type, maybe with parameters, is one of these classes or derives from one."""
    plain = get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, bases)


def is_dataset(kind: Any) -> bool:
    """Whether objects of a type can be read as samples or batches."""
    plain = get_origin(kind) or kind
    if not isinstance(plain, type) or issubclass(plain, (str, bytes)):
        return False
    if issubclass(plain, (Dataset, DataLoader, Tensor)) or plain.__module__ == "collections.abc":
        return issubclass(plain, (Dataset, DataLoader, Tensor, collections.abc.Iterable))
    is_read = hasattr(plain, "__iter__") or (hasattr(plain, "__getitem__") and hasattr(plain, "__len__"))
    return is_read and not acts_by_itself(plain)


def is_data(kind: Any) -> bool:
    """Whether objects of a type are a DataModule, or datasets or dataloaders, also several of them."""
    plain, inner = get_origin(kind) or kind, get_args(kind)
    if is_subclass(plain, DataModule):
        return True
    if is_subclass(plain, Mapping):
        return bool(inner) and any(map(is_dataset, kinds_of(inner[-1])))
    if is_subclass(plain, tuple):
        return bool(inner) and any(map(is_dataset, kinds_of(inner[0])))
    return is_dataset(kind)


def is_schedule(kind: Any) -> bool:
    """Whether objects of a type have what the Trainer calls of a schedule."""
    plain = get_origin(kind) or kind
    if is_subclass(plain, RateSchedule):
        return True
    has_all = all(hasattr(plain, name) for name in ("step", "state_dict", "load_state_dict"))
    return isinstance(plain, type) and has_all and not acts_by_itself(plain)


def is_called(kind: Any) -> bool:
    """Whether objects of a class can be called, as a loss is."""
    return isinstance(kind, type) and bool(_calls_of(kind))


def _calls_of(kind: type) -> list[Any]:
    return [vars(one)["__call__"] for one in kind.__mro__ if "__call__" in vars(one)]


def _unwrapped(target: Any) -> Any:
    while isinstance(target, partial):
        target = target.func
    return target
