"""A learning rate schedule as a picture, and its arguments as a command has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..common.argument_checks import AMOUNT, check_arguments
from ..errors import PacelineError
from ..schedules import RateSchedule, RunLength


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """Arguments of a schedule as a command has them: ``["warmup=5%", "end=0.1"]``.

    Raises:
        PacelineError: for one without ``=``.

    Example:
        >>> read_options(["warmup=100", "end=0.1", "decay=10%"])
        {'warmup': 100, 'end': 0.1, 'decay': '10%'}
    """
    found: dict[str, Any] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise PacelineError(
                "an argument of a schedule is name=value", code="setting-syntax", got=option
            )
        number = re.fullmatch(r"\d{1,18}", text), re.fullmatch(r"\d{0,18}\.?\d{1,18}(e-?\d{1,3})?", text)
        found[name] = int(text) if number[0] else float(text) if number[1] else text
    return found


def plot(schedule: RateSchedule, path: str | Path, length: RunLength, rate: float = 1.0) -> None:
    """Draw the learning rate of each step into a PNG.

    Args:
        schedule: The schedule.
        path: The file; its folder is made if it does not exist.
        length: Of the run.
        rate: The optimizer's.

    Raises:
        PacelineError: for a rate below 0, and where a length is unknown that is needed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    check_arguments("plot", rate=(rate, AMOUNT))
    steps = length.total("plot()")
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(range(1, steps + 1), [rate * schedule.factor(step, length) for step in range(steps)])
    axes.set_title(str(schedule))
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
