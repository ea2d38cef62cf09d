"""A program of the benchmark: a short script with one mistake that raises no error, or a right one.

A program is a function that takes the Trainer's class, as a script would import it, and trains with it::

    @planted("split-overlap", area="table", source="https://...")
    def validates_on_rows_of_the_training_set(trainer):
        \"\"\"The split is drawn twice, so that the parts share rows.\"\"\"
        trainer(max_epochs=2).fit(Classifier(), loader(rows[:80]), loader(rows[40:]))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

AREAS = ("vision", "language", "table", "series", "contrastive", "gan", "diffusion", "transfer", "graph")


@dataclass(frozen=True)
class Program:
    """A program, and what is right to say of it.

    Attributes:
        run: Trains; called with the Trainer's class.
        findings: Names of findings each of which names the mistake; none for a right program.
        area: One of ``AREAS``.
        source: Where people have met it: an address or a paper; "" for one of our own.
        debatable: A right program of which something may well be said: it is counted apart, with why.
    """

    run: Callable[[Any], None]
    findings: frozenset[str]
    area: str
    source: str
    debatable: str = ""

    @property
    def name(self) -> str:
        """The function's name, which says what is done; unique."""
        return self.run.__name__

    @property
    def family(self) -> str:
        """The folder and file that has it: ``faulty/model/layers``."""
        return "/".join(self.run.__module__.split(".")[1:])


PROGRAMS: dict[str, Program] = {}
"""All programs that were imported, by name."""


def planted(
    *findings: str, area: str, source: str = ""
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Add a program with a mistake; any of ``findings`` names it."""
    return _adder(frozenset(findings), area, source, "")


def right(
    *, area: str, source: str = "", debatable: str = ""
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Add a program in which nothing is to be found, however it looks."""
    return _adder(frozenset(), area, source, debatable)


def _adder(
    findings: frozenset[str], area: str, source: str, debatable: str
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    if area not in AREAS:
        raise ValueError(f"{area} is none of {', '.join(AREAS)}")

    def add(run: Callable[[Any], None]) -> Callable[[Any], None]:
        program = Program(run, findings, area, source, debatable)
        if program.name in PROGRAMS:
            raise ValueError(f"two programs are called {program.name}")
        PROGRAMS[program.name] = program
        return run

    return add
