"""A run as a notebook shows it: a table and curves, without a script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ...callbacks.loggers.series import Series
from ...callbacks.pictures.panels import in_order, is_metric, place_of
from ..utils.svg import Curve, chart
from ..utils.text import shown_seconds
from .facts import Facts, extremes_of

_CHARTS = 4
_VALUES = 12
_COLORS = ("#3b82f6", "#ea7317", "#10a37f", "#a855f7")


def run_as_html(facts: Facts, series: Sequence[Series]) -> str:
    """A small piece of HTML; its colours are readable on white and on black.

    Args:
        facts: About the run.
        series: Its values.
    """
    about = f"{facts.steps:,} steps in {shown_seconds(facts.seconds)}"
    about += f", {facts.devices}, {facts.strategy}, {facts.precision}"
    started = f", started {facts.started}" if facts.started else ""
    panels = in_order(place_of(one.name).panel for one in series)
    figures = "".join(_figure(panel, series) for panel in panels[:_CHARTS])
    return (
        f"<div><b>{escape(facts.name)}</b><br><small>{escape(about + started)}</small>{_values(series)}"
        f'<div style="display:flex;flex-wrap:wrap;gap:12px">{figures}</div></div>'
    )


def _values(series: Sequence[Series]) -> str:
    if not series:
        return "<p>nothing was logged</p>"
    lines = []
    for one in sorted(series, key=lambda one: (not is_metric(one.name), one.name))[:_VALUES]:
        found = extremes_of(one)
        best, step = found.best(one.name)
        shown = (f"{best:.5g}", step) if is_metric(one.name) and step >= 0 else ("", "")
        cells = f"<td>{found.last:.5g}</td><td>{shown[0]}</td><td>{shown[1]}</td>"
        lines.append(f"<tr><td>{escape(one.name)}</td>{cells}</tr>")
    more = len(series) - _VALUES
    note = f"<small>and {more} more</small>" if more > 0 else ""
    return (
        f"<table><tr><th></th><th>last</th><th>best</th><th>at step</th></tr>{''.join(lines)}</table>{note}"
    )


def _figure(panel: str, series: Sequence[Series]) -> str:
    inside = sorted((one for one in series if place_of(one.name).panel == panel), key=lambda one: one.name)
    curves, labels = [], []
    several = len(inside) > 1
    for number, one in enumerate(inside[: len(_COLORS)]):
        line = place_of(one.name).line
        training = several and line.startswith("train")
        stage = line.partition(" ")[0] in ("train", "val", "test")
        color = _COLORS[0 if stage else number]
        curves.append(
            Curve(one.x["step"], one.values, color, light=training, dashed=line.endswith("epoch"))
        )
        labels.append(line)
    title = f"{panel}: {', '.join(labels)}" if several else panel
    return f'<div style="width:360px"><small>{escape(title)}</small>{chart(panel, curves)}</div>'
