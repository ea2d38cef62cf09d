"""What makes a function a probe, and how probes are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ...callbacks.checks.finding import Evidence

if TYPE_CHECKING:
    from .subject import Subject

_FILES = (
    *("of_samples", "of_splits", "of_targets", "of_inputs", "of_random_draws", "of_layers", "of_outputs"),
    *(
        "of_losses",
        "of_gradients",
        "of_learning",
        "of_optimizers",
        "of_averages",
        "of_accumulation",
        "of_validations",
    ),
)


Look = Callable[["Subject"], Iterable[Evidence] | None]


@dataclass(frozen=True)
class Probe:
    """A function that tries one thing out.

    Attributes:
        name: Of its finding.
        look: Gives what it has seen of a mistake; nothing where there is none.
    """

    name: str
    look: Look = field(compare=False)


def probe(name: str) -> Callable[[Look], Probe]:
    """Make a probe of a function.

    Args:
        name: Of what it finds, in lower case with hyphens.

    Example:
        >>> from paceline.callbacks.checks import Evidence
        >>> @probe("no-validation")
        ... def no_validation(subject):
        ...     if len(subject.loaders) == 1:
        ...         yield Evidence("there is no validation data", "give fit a validation loader")
        >>> no_validation.name
        'no-validation'
    """

    def made(look: Look) -> Probe:
        return Probe(name, look)

    return made


@cache
def all_probes() -> tuple[Probe, ...]:
    """Every probe, the quick ones of the data first."""
    found = [import_module(f"{__package__}.{name}") for name in _FILES]
    return tuple(one for file in found for one in vars(file).values() if isinstance(one, Probe))
