"""What a table says about a run: when, how long, on what; and the last and best values of its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...callbacks.panels import lower_is_better
from ...callbacks.series import Series


@dataclass(frozen=True)
class Facts:
    """A run in a line.

    Attributes:
        name: ``<name>/<n>``.
        started: When, to the minute; empty where it is not known.
        steps: Of the optimizer.
        seconds: As long as the run trained, until its last row.
        devices: How many of what, such as ``8 cuda``.
        strategy: By name.
        precision: By name.
    """

    name: str
    started: str
    steps: int
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
    trainer = config.get("trainer")
    if not isinstance(trainer, dict):
        trainer = {}
    accelerator = trainer.get("accelerator")
    if accelerator in (None, "auto"):
        accelerator = environment.get("accelerator", "none")
    kind = "cpu" if accelerator == "none" else str(accelerator)
    return Facts(
        name=f"{folder.parent.name}/{folder.name}",
        started=str(environment.get("started", ""))[:16].replace("T", " "),
        steps=max((int(row["step"]) for row in rows), default=0),
        seconds=max((float(row.get("time", 0.0)) for row in rows), default=0.0),
        devices=f"{environment.get('world', 1)} {kind}",
        strategy=str(trainer.get("strategy", "")),
        precision=str(trainer.get("precision", "")),
    )


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
