"""Panels of curves as one PNG: of one run, or of several overlaid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..loggers.series import Array, Series, bucketed
from .panels import RATES, SPEED, ends_of_y, place_of, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 9
_MOST_POINTS = 600  # more than a panel has columns of pixels
_MARKED = 60  # points up to which each of them is marked
_INK = "#374151"
# One family of colours for each run: of lines of training, and of all others.
_FAMILIES = [
    ("#7fa9f2", "#1d4ed8"),
    ("#f6ad7b", "#c2410c"),
    ("#7fcbb0", "#047857"),
    ("#c9a2ea", "#7e22ce"),
    ("#f29bb0", "#be123c"),
    ("#85c6d6", "#0e7490"),
    ("#d8b865", "#8a5a00"),
    ("#a9b4c2", "#475569"),
]


@dataclass(frozen=True)
class Line:
    """A curve of a panel.

    Attributes:
        label: What the legend calls it.
        x: Ascending.
        y: As many values.
        family: The number of its colours: of its run.
    """

    label: str
    x: Array
    y: Array
    family: int = 0


def lines_of(series: Sequence[Series], axis: str = "step", family: int = 0) -> dict[str, list[Line]]:
    """The lines of a run by panel; without those that have no position on this axis."""
    panels: dict[str, list[Line]] = {}
    for one in sorted(series, key=lambda one: one.name):
        place, x = place_of(one.name), one.x.get(axis)
        if x is not None:
            known = ~np.isnan(x)
            line = Line(place.line, x[known], one.values[known], family)
            panels.setdefault(place.panel, []).append(line)
    return panels


def draw_panels(
    panels: Mapping[str, Sequence[Line]],
    picture: Path,
    *,
    title: str,
    axis: str = "step",
    families: Sequence[str] = (),
    dpi: int = 120,
) -> None:
    """Draw panels into a PNG: 9 at most, and the title counts those that are not drawn.

    Args:
        panels: The lines of each panel, in this order.
        picture: The file.
        title: What stands above all panels.
        axis: What the x axis shows.
        families: The names of the runs, where there are several.
        dpi: Dots per inch.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    shown = _most_important(list(panels))
    columns = len(shown) if len(shown) < 4 else 2 if len(shown) == 4 else 3
    rows = -(-len(shown) // columns)
    width = max(4.6 * columns, 5.2)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.09)
    figure = Figure(figsize=(width, 3.1 * rows + 0.45), layout=layout)
    FigureCanvasAgg(figure)
    missing = len(panels) - len(shown)
    more = f"   ({missing} more panel{'s' if missing > 1 else ''} not drawn)" if missing else ""
    figure.suptitle(
        literal(title) + more, x=0.012, ha="left", fontsize=12.5, fontweight="bold", color="#111827"
    )
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for place, panel in zip(axes, shown, strict=False):
        _draw_panel(place, panel, panels[panel], axis, several=bool(families))
        place.set_xlim(*_ends(panels.values()))
    for place in axes[len(shown) :]:
        place.set_visible(False)
    if families:
        families = [literal(name) for name in families]
        handles = [Line2D([], [], color=_family(i)[1], linewidth=3) for i in range(len(families))]
        style = {"frameon": False, "fontsize": 8.5, "labelcolor": _INK}
        if len(families) <= 2 * columns:  # beside the title
            figure.legend(handles, families, loc="upper right", ncols=2 * columns, **style)
        else:
            figure.legend(handles, families, loc="outside lower left", ncols=2 * columns, **style)
    figure.savefig(picture, dpi=dpi)


def literal(text: str) -> str:
    """A name as matplotlib draws it as it is: a ``$`` begins no formula."""
    return text.replace("$", r"\$")


def _ends(panels: Iterable[Sequence[Line]]) -> tuple[float, float]:
    """The ends of the x axis, the same for all panels."""
    ends = [end for lines in panels for line in lines if len(line.x) for end in (line.x[0], line.x[-1])]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    room = 0.03 * (high - low) or 1.0
    return low - room, high + room


def _most_important(panels: list[str]) -> list[str]:
    if len(panels) <= MOST_PANELS:
        return panels
    kept = [panel for panel in panels if panel in (RATES, SPEED)]
    kept += [panel for panel in panels if panel not in kept][: MOST_PANELS - len(kept)]
    return [panel for panel in panels if panel in kept]


def _draw_panel(axes: Axes, panel: str, lines: Sequence[Line], axis: str, several: bool) -> None:
    labels = list(dict.fromkeys(line.label for line in lines))
    low, high, handles = np.inf, -np.inf, dict[str, Any]()
    for line in lines:
        family = line.family if several else 0
        if panel == RATES and not several:
            family = labels.index(line.label)
        drawn = _draw_line(axes, line, _family(family), alone=len(labels) == 1)
        handles.setdefault(line.label, axes.lines[-1])
        low, high = min(low, drawn[0]), max(high, drawn[1])
    _limit(axes, panel, low, high)
    _label(axes, panel, axis)
    if labels != ["value"]:
        axes.legend(
            [handles[label] for label in labels[:5]],
            [literal(label) for label in labels[:5]],
            loc="lower right",
            bbox_to_anchor=(1.01, 1.0),
            ncols=5,
            frameon=False,
            fontsize=8,
            handlelength=1.6,
            columnspacing=1.1,
            borderaxespad=0,
            labelcolor=_INK,
        )


def _draw_line(axes: Axes, line: Line, family: tuple[str, str], alone: bool) -> tuple[float, float]:
    """Draw a line, with the band of its extremes where it has too many points; the extremes."""
    points = bucketed(line.x, line.y, _MOST_POINTS)
    light, dark = family
    training = line.label.startswith("train") and not alone
    by_epoch = line.label.endswith(" epoch")
    color = light if training else dark
    style: dict[str, Any] = {"color": color, "linewidth": 1.3 if training else 1.7, "zorder": 2}
    if by_epoch:
        style |= {"linewidth": 1.0, "linestyle": (0, (4, 2)), "zorder": 2.5}
    elif not training:
        style["zorder"] = 3
    if len(line.x) <= _MARKED:
        style |= {"marker": "o", "markersize": 2.6 if by_epoch or training else 4, "markeredgewidth": 0}
    axes.plot(points.x, points.mean, label=line.label, **style)
    if points.low is not points.high:
        axes.fill_between(points.x, points.low, points.high, color=color, alpha=0.18, linewidth=0, zorder=1)
    finite = points.mean[np.isfinite(points.mean)]
    if not len(finite):
        return np.inf, -np.inf
    return float(np.nanmin(points.low)), float(np.nanmax(points.high))


def _limit(axes: Axes, panel: str, low: float, high: float) -> None:
    """Set the ends of the y axis; a note where no value is finite."""
    if low > high:  # no finite value
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", color="#9ca3af")
        axes.set_yticks([])
    else:
        axes.set_ylim(*ends_of_y(panel, low, high))


def _label(axes: Axes, panel: str, axis: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    whole = axis in ("step", "samples", "tokens")
    axes.set_title(literal(panel), loc="left", fontsize=10, color="#111827", pad=7)
    axes.set_xlabel("seconds" if axis == "time" else axis, fontsize=8.5, color=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: shortened(value)))
    if axes.lines and len(axes.get_yticks()):  # none where no value is finite
        _label_y(axes)
    axes.tick_params(labelsize=8, colors=_INK, length=0)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#9ca3af")


def _label_y(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    low, high = axes.get_ylim()
    if max(abs(low), abs(high)) >= 1e4:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shortened(value)))


def _family(number: int) -> tuple[str, str]:
    return _FAMILIES[number % len(_FAMILIES)]
