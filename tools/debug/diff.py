"""Where two runs part: their settings, their environments, and the first step that is not the same."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...callbacks.loggers.flat import flat_config
from ...callbacks.monitors.step_record import read_record
from ...common.json_text import json_text
from ...trainer.run.facts import values_over
from ...trainer.run.run import Run

ROUNDING = 1e-5
"""The relative difference up to which losses may differ by the order of sums alone."""
_NOT_COMPARED = ("name", "parent", "trainer.run_dir", "trainer.name")
_ENVIRONMENT = (
    "command",
    "host",
    "platform",
    "python",
    "torch",
    "numpy",
    "cpu_count",
    "threads",
    "accelerator",
    "world",
    "weights",
    "resumed",
)
_LAYOUT = ("trainer.strategy", "trainer.precision", "trainer.accumulate", "world", "accelerator")
MEANINGS = {
    "samples": "data: other samples, or another order",
    "random": "random state: other seeds, or another number of draws",
    "loss": "loss",
    "gradient_norm": "gradient norm",
    "rate": "learning rate",
}


_Rows = np.ndarray[Any, Any]


class Changed(NamedTuple):
    """A setting that differs."""

    name: str
    a: Any
    b: Any


@dataclass
class FirstStep:
    """The first step whose records differ.

    Attributes:
        step: Its number, from 1.
        what: ``"samples"``, ``"random"``, ``"loss"``, ``"gradient_norm"`` or ``"rate"``: the first of
            them, in this order.
        a, b: What each run has there; of checksums the numbers themselves say nothing.
        also: What else differs at that step.
        rank: The first rank with a learning rate that is not rank 0's, by run; -1: none.
        beyond_rounding: The first step whose losses differ by more than ``ROUNDING``, 1e-5 of
            the larger one; None: no step.
    """

    step: int
    what: str
    a: float
    b: float
    also: list[str] = field(default_factory=list)
    rank: tuple[int, int] = (-1, -1)
    beyond_rounding: int | None = None


@dataclass
class Difference:
    """What two runs differ in.

    Attributes:
        config, environment: Settings that differ: the dotted name, then what each run has, None where it
            has none.
        steps: How many steps of each are recorded.
        compared: How many of them both have.
        first: The first step that differs; None where all are the same.
        other_layout: Whether their strategies, ranks, devices or precisions differ: losses and norms
            that are no more than ``ROUNDING``, 1e-5, apart are the same then.
        tensor: The first tensor that differs, in words, where the step was repeated.

    Example:
        >>> again = Trainer(max_epochs=1, progress=False).fit(Net(), train_loader)
        >>> found = compare(again, again)
        >>> bool(found), found.compared
        (False, 4)
    """

    config: list[Changed]
    environment: list[Changed]
    steps: tuple[int, int]
    compared: int
    first: FirstStep | None
    tensor: str | None = None
    other_layout: bool = False

    def __bool__(self) -> bool:
        return self.first is not None

    def as_json(self) -> str:
        """All of it as a JSON object."""
        return json_text(asdict(self))

    def __str__(self) -> str:
        lines = [*_table("config", self.config), *_table("environment", self.environment)]
        a, b = self.steps
        lines.append(f"steps recorded: {a} and {b}, compared: {self.compared}")
        if self.other_layout:
            lines.append(
                f"other ranks or precision: what is less than {ROUNDING:g} apart counts as the same"
            )
        if self.first is None:
            return "\n".join([*lines, "every compared step is the same" if self.compared else _NOTHING])
        lines += _described(self.first)
        return "\n".join([*lines, self.tensor] if self.tensor else lines)


_NOTHING = "there is no step that both runs have recorded"


def compare(a: Run, b: Run) -> Difference:
    """Compare two runs by what they wrote.

    Args:
        a: A run.
        b: Another one.

    Raises:
        PacelineError: when one has no record of its steps.
    """
    rows = read_record(a.folder), read_record(b.folder)
    config = _changed(flat_config(a.config), flat_config(b.config), _NOT_COMPARED)
    environment = _changed(_environment(a), _environment(b))
    other_layout = any(_over(a, name) != _over(b, name) for name in _LAYOUT)
    _, mine, theirs = np.intersect1d(rows[0]["step"], rows[1]["step"], return_indices=True)
    return Difference(
        config=config,
        environment=environment,
        steps=(len(rows[0]), len(rows[1])),
        compared=len(mine),
        first=_first(rows[0][mine], rows[1][theirs], ROUNDING if other_layout else 0.0),
        other_layout=other_layout,
    )


def _environment(run: Run) -> dict[str, Any]:
    found = run.environment
    kept = {name: found[name] for name in _ENVIRONMENT if name in found}
    return kept | {"command": " ".join(map(str, _list(found.get("command"))))}


def _over(run: Run, name: str) -> dict[int, Any]:
    return values_over(name, run.config, run.environment)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _changed(a: dict[str, Any], b: dict[str, Any], ignored: tuple[str, ...] = ()) -> list[Changed]:
    names = [name for name in dict.fromkeys([*a, *b]) if name not in ignored]
    return [Changed(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]


def _first(a: _Rows, b: _Rows, tolerance: float) -> FirstStep | None:
    differs = {}
    for what in MEANINGS:
        x, y = a[what], b[what]
        same = (x == y) | ((x != x) & (y != y))
        if what in ("loss", "gradient_norm"):
            same |= _apart(x, y) <= tolerance
        if what == "gradient_norm":
            same |= (x != x) | (y != y)  # one of them did not measure it
        elif what == "samples":
            same |= (a[what] == 0) | (b[what] == 0)
        elif what == "random":  # each rank has its own
            same |= a["ranks"] != b["ranks"]
        elif what == "rate":
            same &= a["rank"] == b["rank"]
        differs[what] = ~same
    somewhere = np.flatnonzero(np.logical_or.reduce(list(differs.values())))
    if not len(somewhere):
        return None
    at = int(somewhere[0])
    found = [what for what, where in differs.items() if where[at]]
    large = np.flatnonzero(differs["loss"] & ~(_apart(a["loss"], b["loss"]) <= ROUNDING))
    return FirstStep(
        step=int(a["step"][at]),
        what=found[0],
        a=float(a[found[0]][at]),
        b=float(b[found[0]][at]),
        also=found[1:],
        rank=(int(a["rank"][at]), int(b["rank"][at])),
        beyond_rounding=int(a["step"][large[0]]) if len(large) else None,
    )


def _apart(x: _Rows, y: _Rows) -> _Rows:
    """The difference, relative to the larger one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: _Rows = np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))
    return found


def _table(title: str, changed: list[Changed]) -> list[str]:
    if not changed:
        return [f"{title}: the same"]
    width = max(len(one.name) for one in changed)
    return [f"{title}:"] + [f"  {one.name:<{width}}  {_text(one.a)} | {_text(one.b)}" for one in changed]


def _text(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _described(first: FirstStep) -> list[str]:
    lines = [f"first difference: step {first.step}, {MEANINGS[first.what]}"]
    if first.what not in ("samples", "random") and first.a != first.b:
        apart = abs(first.a - first.b) / max(abs(first.a), abs(first.b), 1e-300)
        lines[0] += f" {first.a:.9g} and {first.b:.9g}"
        if math.isfinite(apart):
            lines[0] += f", {apart:.1e} apart"
    if first.also:
        lines.append(f"  at that step also: {', '.join(MEANINGS[what] for what in first.also)}")
    for run, rank in zip("AB", first.rank, strict=True):
        if rank >= 0:
            lines.append(f"  run {run}: rank {rank} has another learning rate than rank 0")
    if first.what == "loss" and first.beyond_rounding != first.step:
        where = "in no step" if first.beyond_rounding is None else f"first at step {first.beyond_rounding}"
        lines.append(f"  that may be rounding: losses differ by more than {ROUNDING:g} {where}")
    return lines
