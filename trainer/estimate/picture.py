"""The picture of an estimate: a stacked bar of bytes for each strategy, and the memory there is."""

from __future__ import annotations

from pathlib import Path

from ..utils.paths import as_path
from .findings import Findings
from .table import PARTS

_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")


def draw_estimate(path: str | Path, title: str, estimate: Findings) -> None:
    """Draw it into a PNG.

    Args:
        path: The file; its folder is made if it does not exist.
        title: Stands above the axes.
        estimate: What is drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    target = as_path(path, "draw")
    rows = estimate.rows
    unit, name = (2**30, "GiB") if max(row.needed for row in rows) >= 2**30 else (2**20, "MiB")
    figure = Figure(figsize=(8.0, 1.6 + 0.36 * len(rows)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = range(len(rows))
    left = [0.0] * len(rows)
    for (part, label), colour in zip(PARTS.items(), _COLOURS, strict=True):
        shown = [getattr(row.bytes, part) for row in rows]
        if part == "idle":
            shown = [row.needed - row.bytes.total for row in rows]
        widths = [value / unit for value in shown]
        if any(widths):
            axes.barh(places, widths, left=left, color=colour, label=label, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    limit = estimate.memory * estimate.limit / unit
    most = max(left)
    if limit < 3 * most:
        axes.axvline(
            limit, color="black", linestyle="--", linewidth=1.2, label=f"limit: {limit:.3g} {name}"
        )
    axes.set_xlim(0, 1.04 * max(most, limit if limit < 3 * most else 0))
    axes.set_yticks(places, [row.strategy for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"{name} on each device")
    axes.set_title(title, wrap=True, fontsize="medium")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="png", dpi=120)
