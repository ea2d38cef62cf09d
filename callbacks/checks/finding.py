"""A finding: a mistake that raises no error, with what shows it; and what makes a function a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from .seen import Seen

Moment = Literal["start", "steps", "validation", "test", "end"]


@dataclass(frozen=True)
class Evidence:
    """What a check has seen.

    Args:
        seen: A clause with names and figures: ``"layers is a list, and its 4 weights are not trained"``.
        cure: How to mend it, a clause in the imperative: ``"use nn.ModuleList"``.

    Example:
        >>> Evidence("layers is a list, and its 4 weights are not trained", "use nn.ModuleList").cure
        'use nn.ModuleList'
    """

    seen: str
    cure: str


def first_of(found: Iterable[Evidence] | None) -> Evidence | None:
    """The first of what was seen, with how many more there are; None for nothing."""
    evidence = list(found or ())
    if not evidence:
        return None
    more = f" (and {len(evidence) - 1} more like it)" if len(evidence) > 1 else ""
    return Evidence(evidence[0].seen + more, evidence[0].cure)


@dataclass(frozen=True)
class Finding:
    """A mistake that raises no error.

    Attributes:
        name: Of the check: ``"hidden-weights"``.
        evidence: What shows it.
        cure: How to mend it.
        step: Optimizer steps that were done when it was noticed.
    """

    name: str
    evidence: str
    cure: str
    step: int = 0

    @property
    def lines(self) -> str:
        """The two lines of a warning: what is wrong, then how to mend it and how to say that it is meant.

        Example:
            >>> print(Finding("no-update", "no weight changed in 10 steps", "raise the rate").lines)
            warning: no weight changed in 10 steps (no-update)
              raise the rate; if it is meant: callbacks=Checks(skip="no-update")
        """
        return (
            f"warning: {self.evidence} ({self.name})\n"
            f'  {self.cure}; if it is meant: callbacks=Checks(skip="{self.name}")'
        )


Look = Callable[[Seen], Iterable[Evidence]]


@dataclass(frozen=True)
class Check:
    """A function that looks for one kind of mistake.

    Attributes:
        name: Of its findings. Several checks may have one name, and each finding is shown once.
        at: When it looks: before the first step, after some of the first steps, after a validation or test
            of the run, or at the end of the fit.
        look: Gives what it has seen of a mistake; nothing where there is none.
    """

    name: str
    at: Moment
    look: Look = field(compare=False)


def check(name: str, at: Moment) -> Callable[[Look], Check]:
    """Make a check of a function.

    Args:
        name: Of what it finds, in lower case with hyphens.
        at: When it is called.

    Example:
        >>> @check("huge-output", at="steps")
        ... def huge_output(seen):
        ...     for loss in seen.losses:
        ...         if loss.output.maximum > 1e6:
        ...             yield Evidence(f"outputs reach {loss.output.maximum:.0e}", "normalise the inputs")
        >>> huge_output.name
        'huge-output'
    """

    def made(look: Look) -> Check:
        return Check(name, at, look)

    return made
