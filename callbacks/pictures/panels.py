"""Which values of a run belong into one panel of a picture, and in which order panels come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_STAGES = ("train", "val", "test")
RATES = "learning rate"
SPEED = "samples per second"


class Place(NamedTuple):
    """Where a value is drawn.

    Attributes:
        panel: The panel's title: values with the same one are drawn together.
        line: What it is called there: ``train``, ``train epoch``, ``val``, the optimizer's name.
    """

    panel: str
    line: str


def place_of(name: str) -> Place:
    """Where the value of this full name is drawn.

    Example:
        >>> place_of("train/loss_epoch")
        Place(panel='loss', line='train epoch')
        >>> place_of("lr/AdamW")
        Place(panel='learning rate', line='AdamW')
    """
    prefix, _, rest = name.partition("/")
    if prefix in _STAGES and rest:
        whole = rest.removesuffix("_epoch")
        return Place(whole, f"{prefix} epoch" if whole != rest else prefix)
    if prefix == "lr" and rest:
        return Place(RATES, rest)
    if name == "perf/samples_per_second":
        return Place(SPEED, "value")
    return Place(name, "value")


def in_order(panels: Iterable[str]) -> list[str]:
    """Losses first, then metrics, the learning rate, throughput, and all others."""
    return sorted(set(panels), key=lambda panel: (_rank(panel), panel))


def starts_at_zero(panel: str) -> bool:
    """Whether the y axis of a panel begins at 0: rates of learning and speeds."""
    return panel == RATES or is_throughput(panel)


def is_throughput(panel: str) -> bool:
    """Whether a panel shows how fast the run is."""
    return panel == SPEED or (panel.startswith("perf/") and panel.endswith("_per_second"))


def ends_of_y(panel: str, low: float, high: float) -> tuple[float, float]:
    """The ends of the y axis: 0 at the bottom of rates, and room around a constant.

    Args:
        panel: Its title.
        low: The lowest value.
        high: The highest value.

    Example:
        >>> ends_of_y("learning rate", 0.5, 0.5)
        (0.0, 0.56)
        >>> ends_of_y("accuracy", 0.5, 0.5)
        (0.25, 0.75)
    """
    if starts_at_zero(panel) and low >= 0:
        return 0.0, round(1.12 * high, 15) or 1.0
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        room = abs(high) / 2 or 1.0
        return low - room, high + room
    return low - 0.05 * (high - low), high + 0.07 * (high - low)


def is_metric(name: str) -> bool:
    """Whether a value of this name was logged by a stage, and so has a best one."""
    prefix, _, rest = name.partition("/")
    return prefix in _STAGES and bool(rest)


def lower_is_better(name: str) -> bool:
    """Whether the best value of this name is the lowest one; a guess by its name."""
    return any(word in name.lower() for word in ("loss", "error", "perplexity"))


def _rank(panel: str) -> int:
    if panel == RATES:
        return 3
    if is_throughput(panel):
        return 4
    if panel.partition("/")[0] in ("perf", "norm", "time", "device"):
        return 5
    return 0 if panel == "loss" else 1 if "loss" in panel else 2


def shortened(value: float) -> str:
    """A number as an axis shows it.

    Example:
        >>> [shortened(value) for value in (0.5, 25, 2500, 12000, 3.5e6)]
        ['0.5', '25', '2.5k', '12k', '3.5M']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
