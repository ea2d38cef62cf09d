"""Lightning's class paths in configuration files and arguments as ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import yaml
from jsonargparse import ArgumentParser, get_loader, set_loader

_LIGHTNING = re.compile(r"(?<![\w./])(?:pytorch_lightning|lightning\.pytorch)(?=\.[A-Za-z_])")
_OURS = __package__.rpartition(".")[0]
YAML = "yaml_of_lightning"
"""The mode of parsers that read Lightning's names in YAML as ours."""


def with_our_names(value: Any) -> Any:
    """A text, or texts in nested lists and mappings, with our package in the place of Lightning's.

    Example:
        >>> with_our_names({"class_path": "lightning.pytorch.callbacks.EarlyStopping"})
        {'class_path': 'paceline.compat.lightning.pytorch.callbacks.EarlyStopping'}
    """
    if isinstance(value, str):
        return _LIGHTNING.sub(_OURS, value)
    if isinstance(value, Mapping):
        return {name: with_our_names(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(with_our_names(one) for one in value)
    return value


def register() -> None:
    """Let ``parser_mode=YAML`` be known to ``jsonargparse``."""
    _let_read(YAML, get_loader("yaml"))


@cache
def register_omegaconf(mode: str) -> None:
    """Let a mode of OmegaConf read Lightning's names as ours.

    Args:
        mode: ``"omegaconf"`` or ``"omegaconf+"``.
    """
    ArgumentParser(parser_mode=mode).parse_string("{}")  # which makes its loader known
    _let_read(mode, get_loader(mode))


def _let_read(mode: str, read: Callable[[str], Any]) -> None:
    set_loader(mode, lambda text: read(with_our_names(text)), exceptions=(yaml.YAMLError,))
