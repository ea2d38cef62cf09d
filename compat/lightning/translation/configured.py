"""What modules record of the configuration that they are built with, and building them from it again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ....trainer.checkpoint.weights import construct
from .hyperparameters import given_hyperparameters

INSTANTIATOR = "paceline.compat.lightning.pytorch.cli.instantiate_module"
"""What a checkpoint names for those who build its module."""


def recording(key: str, given: dict[str, Any]) -> Callable[..., Any]:
    """A function that builds a class for jsonargparse, which records its part of the configuration.

    Args:
        key: ``"model"`` or ``"data"``.
        given: Its part of the configuration, as plain data.
    """

    def made(class_type: Any, *args: Any, applied_instantiation_links: Any = (), **kwargs: Any) -> Any:
        part = copy.deepcopy(given)
        if "class_path" in part:
            arguments = (part.get("init_args") or {}) | (part.get("dict_kwargs") or {})
            part = {"_class_path": part["class_path"], **arguments}
        for target, value in dict(applied_instantiation_links).items():
            root, _, name = target.partition(".")
            if root == key:
                _put(part, name.removeprefix("init_args."), value)
        with given_hyperparameters(part | {"_instantiator": INSTANTIATOR}):
            return class_type(*args, **kwargs)

    return made


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for one in path:
        values = values.setdefault(one, {})
    values[last] = value


def build(cls: type, recorded: dict[str, Any]) -> Any:
    """Build a module from what a checkpoint has recorded: from a configuration, or by its constructor."""
    return (instantiate_module if "_instantiator" in recorded else construct)(cls, recorded)


def instantiate_module(class_type: type, config: dict[str, Any]) -> Any:
    """Build a module from what it has recorded.

    Args:
        class_type: The class, or a base of the one that was recorded.
        config: Its arguments; classes among them as ``class_path`` and ``init_args``.

    Raises:
        ArgumentError: of jsonargparse, for arguments that do not fit.
    """
    from jsonargparse import ArgumentParser

    arguments = dict(config)
    class_path = arguments.pop("_class_path", None)
    for name in ("_instantiator", "_saved"):
        arguments.pop(name, None)
    parser = ArgumentParser(exit_on_error=False)
    if class_path is None:
        parser.add_class_arguments(class_type, "module", fail_untyped=False)
    else:
        parser.add_subclass_arguments(class_type, "module", fail_untyped=False)
        arguments = {"class_path": class_path, "dict_kwargs": arguments}
    return parser.instantiate(parser.parse_object({"module": arguments})).module
