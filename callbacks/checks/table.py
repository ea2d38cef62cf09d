"""All checks: those of the files beside this one, and those that other packages have installed."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ...plugins import load, names
from .finding import Check, Moment

_FILES = ("of_model", "of_modes", "of_losses", "of_data", "of_optimization", "of_measurement")


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check, in the order in which findings are shown."""
    found = [import_module(f"{__package__}.{name}") for name in _FILES]
    built_in = [one for file in found for one in vars(file).values() if isinstance(one, Check)]
    return (*built_in, *(load("checks", name, Check) for name in names("checks")))


def checks_for(moment: Moment, on_request: bool) -> list[Check]:
    """The checks of a moment; those that are left to ``paceline check`` only where it is that."""
    return [one for one in all_checks() if one.at == moment and (on_request or not one.on_request)]


@cache
def known_names() -> frozenset[str]:
    """The names of all findings."""
    return frozenset(one.name for one in all_checks())
