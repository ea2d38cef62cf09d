"""``paceline report``: runs as one HTML page, which needs no other file and no network."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ...callbacks.loggers.series import POSITION, Array, Series
from ...callbacks.pictures.panels import RATES, in_order, place_of, starts_at_zero
from ...common.version import __version__
from ...trainer.run.find import find_runs
from ...trainer.utils.paths import as_path, writing
from ...trainer.utils.svg import Curve, chart
from . import tables
from .series import EXACT, encode_position, encode_values, reduced, reduced_position
from .summary import RunSummary, summarize

MOST_BYTES = 4_900_000  # of a page
_NAMES = 4  # in the title
_STATIC_POINTS = 60_000  # of all pictures without a script together
_BITS = (EXACT, 16, 14, 12, 11, 10)


def write_report(paths: Sequence[str | Path], out: str | Path = "report.html") -> Path:
    """Write a page about runs.

    Args:
        paths: Folders of runs, or folders above.
        out: The page.

    Returns:
        The page.

    Raises:
        PacelineError: where there is no run, and where the page cannot be written.
    """
    return write_page(summarize(find_runs(paths)), out)


def write_page(runs: Sequence[RunSummary], out: str | Path = "report.html") -> Path:
    """The same of runs that were read already."""
    page = Path(out) / "report.html" if as_path(out, "report").is_dir() else Path(out).expanduser()
    text = build_page(runs)
    with writing("the report", page):
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8", errors="replace")
    return page


def build_page(runs: Sequence[RunSummary], most_bytes: int = MOST_BYTES) -> str:
    """The text of a page about runs.

    The values of charts are kept as 32-bit floats, in fewer bits, or as fewer points, whichever is the
    first to fit; tables have the exact ones.

    Args:
        runs: At least one.
        most_bytes: What the page may have, if this leaves at least some points of each series.
    """
    panels = in_order(place_of(one.name).panel for run in runs for one in run.series)
    parts = _static_parts(runs, panels)
    room = most_bytes - sum(len(text.encode()) for text in parts.values()) - 2000
    data = _fitting(runs, panels, room)
    parts |= {"data": data.text, "notes": _notes(data)}
    template = _resource("page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _static_parts(runs: Sequence[RunSummary], panels: Sequence[str]) -> dict[str, str]:
    """Everything but the data of the charts."""
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs: {_names_of(runs)}"
    buttons = (
        f'<button aria-pressed="true" class="{tables.swatch(number)}">{escape(run.label)}</button>'
        for number, run in enumerate(runs)
    )
    sections = (
        tables.comparison_table(runs),
        tables.config_section(runs),
        tables.environment_section(runs),
        tables.checkpoint_section(runs),
        tables.text_section(runs),
        tables.finding_section(runs),
        tables.warning_section(runs),
    )
    axes = "".join(f'<option value="{axis}">{axis}</option>' for axis in _ranges(runs))
    cards = "".join(_card(number, panel, runs) for number, panel in enumerate(panels))
    nothing = '<p class="note">Nothing was logged.</p>'
    return {
        "title": escape(title),
        "about": f"paceline {__version__}, written {time.strftime('%Y-%m-%d %H:%M')}",
        "summary": tables.summary_table(runs),
        "run_buttons": "".join(buttons),
        "axes": axes,
        "charts": f'<section class="charts">{cards}</section>' if panels else nothing,
        "sections": "".join(sections),
        "css": _resource("page.css"),
        "uplot_css": _resource("uplot/uPlot.min.css"),
        "uplot_js": _resource("uplot/uPlot.iife.min.js"),
        "data_js": _resource("data.js"),
        "page_js": _resource("page.js"),
    }


def _names_of(runs: Sequence[RunSummary]) -> str:
    names = list(dict.fromkeys(run.label.rpartition("/")[0] for run in runs))
    return ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _card(number: int, panel: str, runs: Sequence[RunSummary]) -> str:
    """The place of a chart, with the small picture that is printed, and shown where no script runs."""
    curves, lines = [], _lines(panel, runs)
    several = len({place_of(series.name).line for _, series in lines}) > 1
    for run, series in lines:
        line = place_of(series.name).line
        light, dashed = several and line.startswith("train"), line.endswith(" epoch")
        curves.append(
            Curve(series.x["step"], series.values, f"var(--r{run % tables.COLORS})", light, dashed)
        )
    return (
        f'<article class="card" data-chart="{number}"><div class="top"><h3>{escape(panel)}</h3>'
        '<table class="legend"><thead><tr></tr></thead><tbody></tbody></table></div>'
        f'<div class="live"></div>{chart(panel, curves, _points(runs))}</article>'
    )


def _points(runs: Sequence[RunSummary]) -> int:
    """Of each curve in a picture without a script: 200, fewer where there are very many."""
    curves = sum(len(run.series) for run in runs)
    return max(min(200, _STATIC_POINTS // max(curves, 1)), 10)


def _lines(panel: str, runs: Sequence[RunSummary]) -> list[tuple[int, Series]]:
    """Run by run, training before validation."""
    return [
        (number, series)
        for number, run in enumerate(runs)
        for series in sorted(run.series, key=lambda series: series.name)
        if place_of(series.name).panel == panel
    ]


def _ranges(runs: Sequence[RunSummary]) -> dict[str, tuple[float, float]]:
    """The ends of each x axis that some run has."""
    found = {}
    for axis in POSITION:
        columns = [s.x[axis] for run in runs for s in run.series if axis in s.x and len(s.x[axis])]
        if columns:
            lows, highs = [np.nanmin(c) for c in columns], [np.nanmax(c) for c in columns]
            found[axis] = (float(min(lows)), float(max(highs)))
    return found


@dataclass
class _Data:
    """What the script of the page reads.

    Attributes:
        text: JSON that is safe inside an element.
        bits: Of each value.
        points: Of all series together.
        kept: How many of them the page has.
    """

    text: str
    bits: int
    points: int
    kept: int


def _fitting(runs: Sequence[RunSummary], panels: Sequence[str], room: int) -> _Data:
    """The data in the first form that has room."""
    points = sum(len(series.values) for run in runs for series in run.series)
    for bits in _BITS:
        if bits == EXACT and 5 * points > 2 * room:  # clearly too many
            continue
        builder = _Builder(runs, panels, bits)
        text = builder.text()
        if len(text) <= room:
            return _Data(text, bits, points, builder.kept)
    longest = max(len(series.values) for run in runs for series in run.series)
    while len(text) > room and longest > 8:
        longest = max(int(longest * min(0.95 * room / len(text), 0.9)) if room > 0 else 8, 8)
        builder = _Builder(runs, panels, 10, longest)
        text = builder.text()
    return _Data(text, 10, points, builder.kept)


@dataclass
class _Builder:
    """Builds the data of a page.

    Attributes:
        runs: Of the page.
        panels: Its charts.
        bits: Of each value.
        longest: Longer series are reduced to so many points; 0: none is.
        kept: How many points are in the data.
    """

    runs: Sequence[RunSummary]
    panels: Sequence[str]
    bits: int
    longest: int = 0
    kept: int = 0
    _tracks: list[dict[str, Any]] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)

    def text(self) -> str:
        """JSON that is safe inside an element."""
        charts = [self._chart(panel) for panel in self.panels]
        content = {
            "runs": [run.label for run in self.runs],
            "ranges": _ranges(self.runs),
            "tracks": self._tracks,
            "charts": charts,
        }
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def _chart(self, panel: str) -> dict[str, Any]:
        lines = [
            {
                "run": run,
                "name": place_of(series.name).line,
                "track": self._track(series.x),
                "values": encode_values(self._reduced(series.values), self.bits),
            }
            for run, series in _lines(panel, self.runs)
        ]
        by_line = panel == RATES and len(self.runs) == 1 and len(lines) > 1
        return {"title": panel, "zero": starts_at_zero(panel), "byLine": by_line, "lines": lines}

    def _track(self, x: dict[str, Array]) -> int:
        """The number of the positions of a series; those of the same rows are in the page once."""
        if id(x) not in self._known:
            self._known[id(x)] = len(self._tracks)
            columns = {key: encode_position(self._position(column), self.bits) for key, column in x.items()}
            self._tracks.append(columns)
        return self._known[id(x)]

    def _reduced(self, values: Array) -> Array:
        values = reduced(values, self.longest // 2) if self._is_long(values) else values
        self.kept += len(values)
        return values

    def _position(self, column: Array) -> Array:
        return reduced_position(column, self.longest // 2) if self._is_long(column) else column

    def _is_long(self, values: Array) -> bool:
        return 0 < self.longest < len(values)


def _notes(data: _Data) -> str:
    """What the page says about its own numbers."""
    notes = ["The tables have the exact values: each is the title of its cell."]
    if data.bits == EXACT:
        notes.append(f"The charts have all {data.points:,} points as 32-bit floats.")
    else:
        step = (
            f"1/{2**data.bits - 2:,} of the range of its series (of its logarithm where the range is wide)"
        )
        notes.append(f"To keep the page small, a value in a chart is rounded to {step}.")
    if data.kept < data.points:
        notes.append(
            f"Charts are shown reduced from {data.points:,} points to {data.kept:,}: "
            "the lowest and the highest value of equal parts."
        )
    notes.append(
        "More than 2,000 points in view are drawn as the mean of 800 equal parts, in a band from the "
        "lowest to the highest value. Drag to zoom in, until each point is drawn; double-click to zoom "
        "out. NaN and infinities are gaps."
    )
    notes.append("A run has one colour: paler is training, dashed are the means over its epochs.")
    return "".join(f"<p>{escape(note)}</p>" for note in notes)
