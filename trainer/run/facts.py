"""What a table says about a run: when, how long, on what; and the last and best values of its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...callbacks.loggers.series import Series
from ...callbacks.pictures.panels import lower_is_better


@dataclass(frozen=True)
class Facts:
    """A run in a line.

    Attributes:
        name: ``<name>/<n>``.
        started: When, to the minute; empty where it is not known.
        steps: Of the optimizer.
        epochs: How many it has begun.
        seconds: As long as the run trained, until its last row.
        devices: How many of what, such as ``8 cuda``; after a resume on others
            ``8 cuda, then 4 cuda from step 201``.
        strategy: By name, and likewise.
        precision: By name, and likewise.
    """

    name: str
    started: str
    steps: int
    epochs: int
    seconds: float
    devices: str
    strategy: str
    precision: str


def read_facts(
    folder: Path, config: dict[str, Any], environment: dict[str, Any], rows: list[dict[str, Any]]
) -> Facts:
    """The facts of a run.

    Args:
        folder: Of the run.
        config: Its config.yaml.
        environment: Its env.json.
        rows: Its metrics.jsonl.
    """
    steps = max((int(row["step"]) for row in rows), default=0)
    strategy, precision, asked, there, world = (
        values_over(name, config, environment)
        for name in ("trainer.strategy", "trainer.precision", "trainer.accelerator", "accelerator", "world")
    )

    def devices(step: int) -> str:
        kind = _at(asked, step)
        if kind in (None, "auto"):
            kind = _at(there, step)
        return f"{_at(world, step) or 1} {'cpu' if kind in (None, 'none') else kind}"

    return Facts(
        name=f"{folder.parent.name}/{folder.name}",
        started=str(environment.get("started", ""))[:16].replace("T", " "),
        steps=steps,
        epochs=max((int(row["epoch"]) + 1 for row in rows if "epoch" in row), default=0),
        seconds=max((float(row.get("time", 0.0)) for row in rows), default=0.0),
        devices=_in_words({step: devices(step) for step in sorted({*asked, *there, *world})}, steps),
        strategy=_in_words(strategy, steps),
        precision=_in_words(precision, steps),
    )


def values_over(name: str, config: dict[str, Any], environment: dict[str, Any]) -> dict[int, Any]:
    """What a setting was over a run that may have been resumed with another value.

    Args:
        name: Of env.json, or, with a dot, of config.yaml.
        config: The run's config.yaml, with the settings of now; its ``resumed`` has those before.
        environment: The run's env.json, as the run began; its ``resumed`` has what is other from then on.

    Returns:
        Each value by the first step that was trained with it, in order, from step 1.
    """
    if "." in name:
        section, _, key = name.partition(".")
        settings = config.get(section)
        value = settings.get(key) if isinstance(settings, dict) else None
        found = []
        for step, before in reversed(_resumes(config, "before")):
            found.append((step, value))
            value = before.get(name, value)
        found.append((1, value))
        found.reverse()
    else:
        found = [(1, environment.get(name))]
        for step, now in _resumes(environment, "now"):
            found.append((step, now.get(name, found[-1][1])))
    values: dict[int, Any] = {}
    for step, value in found:
        values = {earlier: kept for earlier, kept in values.items() if earlier < step}  # trained once more
        if not values or value != values[max(values)]:
            values[step] = value
    return values


def _resumes(content: dict[str, Any], key: str) -> list[tuple[int, dict[str, Any]]]:
    """The first step after each resume that is noted, and the note; without what is damaged."""
    entries, found = content.get("resumed"), []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get(key), dict):
            number = str(entry.get("from")).rpartition("-")[2]
            if number.isdecimal():
                found.append((int(number) + 1, entry[key]))
    return found


def _at(values: dict[int, Any], step: int) -> Any:
    return values[max(first for first in values if first <= step)]


def _in_words(values: dict[int, Any], steps: int) -> str:
    """``1 cpu, then 2 cpu from step 9``: the first of many and the last, and of steps that there are."""
    said: list[str] = []
    last = None
    for step, value in values.items():
        if not said:
            said.append(_text(value))
        elif value != last and (step <= steps or not steps):
            said.append(f"then {_text(value)} from step {step:,}")
        last = value
    if len(said) > 4:
        said[1:-1] = [f"{len(said) - 2} others"]
    return ", ".join(said)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


@dataclass(frozen=True)
class Extremes:
    """The last, lowest and highest value of a series, exactly as logged.

    Attributes:
        last: NaN included.
        low: Of the finite values; NaN where there is none.
        high: Likewise.
        low_step: The first step that has it; -1 where none has.
        high_step: Likewise.
    """

    last: float
    low: float
    high: float
    low_step: int
    high_step: int

    def best(self, name: str) -> tuple[float, int]:
        """The best value and its step: the lowest one of a loss, else the highest one."""
        return (self.low, self.low_step) if lower_is_better(name) else (self.high, self.high_step)


def extremes_of(series: Series) -> Extremes:
    """The last, lowest and highest value of a series."""
    values, steps = series.values, series.x["step"]
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return Extremes(float(values[-1]), float("nan"), float("nan"), -1, -1)
    low, high = finite[np.argmin(values[finite])], finite[np.argmax(values[finite])]
    return Extremes(
        float(values[-1]), float(values[low]), float(values[high]), int(steps[low]), int(steps[high])
    )
