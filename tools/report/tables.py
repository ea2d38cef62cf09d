"""The tables of a page as HTML; whatever comes from a run is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ...callbacks.pictures.panels import in_order, is_metric, lower_is_better, place_of
from ...trainer.utils.text import shown_seconds, shown_size
from .summary import RunSummary, all_keys, differing_keys, text_of

_MAIN = 3  # metrics of the first table
COLORS = 8  # of runs, in page.css


def summary_table(runs: Sequence[RunSummary]) -> str:
    """When each run was, on what, and its main metrics."""
    metrics = _main_metrics(runs)
    heads = ["run", "started", "steps", "duration", "devices", "strategy", "precision"]
    first = f'<th colspan="{len(heads)}"></th>'
    first += "".join(f'<th colspan="2" class="group">{escape(name)}</th>' for name in metrics)
    second = "".join(f"<th{_right(head == 'steps')}>{head}</th>" for head in heads)
    second += '<th class="number group">last</th><th class="number">best</th>' * len(metrics)
    best = {name: _best_value(name, runs) for name in metrics}
    lines = []
    for number, run in enumerate(runs):
        facts = run.facts
        cells = [_run_cell(number, run), _cell(facts.started), _cell(f"{facts.steps:,}", "number")]
        cells += [_cell(shown_seconds(facts.seconds)), _cell(facts.devices), _cell(facts.strategy)]
        cells.append(_cell(facts.precision))
        for name in metrics:
            found = run.extremes.get(name)
            value, step = found.best(name) if found else (None, -1)
            mark = (
                "number best" if len(runs) > 1 and value is not None and value == best[name] else "number"
            )
            cells.append(_number(found.last if found else None, "number group"))
            cells.append(_number(value, mark, f" at step {step:,}"))
        lines.append(_row(cells))
    return _table([first, second] if metrics else [second], lines)


def comparison_table(runs: Sequence[RunSummary]) -> str:
    """The last, lowest and highest of all values; the best of each metric is marked."""
    names = _names(runs)
    first = "<th></th>" + "".join(
        f'<th colspan="3" class="group {swatch(number)}">{escape(run.label)}</th>'
        for number, run in enumerate(runs)
    )
    second = "<th>value</th>" + (
        '<th class="number group">last</th><th class="number">min</th><th class="number">max</th>'
        * len(runs)
    )
    lines = []
    for name in names:
        best = _best_value(name, runs) if is_metric(name) and len(runs) > 1 else None
        low_marks, high_marks = ("best", "") if lower_is_better(name) else ("", "best")
        cells = [_cell(name)]
        for run in runs:
            found = run.extremes.get(name)
            if found is None:
                cells += [_cell("", "group"), _cell(""), _cell("")]
                continue
            cells.append(_number(found.last, "number group"))
            for value, step, mark in (
                (found.low, found.low_step, low_marks),
                (found.high, found.high_step, high_marks),
            ):
                marked = f"number {mark}" if mark and value == best else "number"
                cells.append(_number(value, marked, f" at step {step:,}"))
        lines.append(_row(cells))
    return _section("Values", _table([first, second], lines)) if names else ""


def config_section(runs: Sequence[RunSummary]) -> str:
    """The keys of config.yaml that differ between the runs; of one run, all of them."""
    return _compared("configuration", runs, [run.config for run in runs])


def environment_section(runs: Sequence[RunSummary]) -> str:
    """What the runs ran on: what differs, and everything."""
    found = [run.environment for run in runs]
    return _compared("environment", runs, found) if any(found) else ""


def _compared(what: str, runs: Sequence[RunSummary], found: Sequence[dict[str, Any]]) -> str:
    if len(runs) == 1:
        return _section(what.capitalize(), _folded(f"{len(found[0])} keys", _keys(runs, found)))
    differing = _keys(runs, found, differing=True)
    shown = differing or f'<p class="note">The {what}s are the same.</p>'
    return _section(f"Differences in {what}", shown + _folded("all keys", _keys(runs, found)))


def checkpoint_section(runs: Sequence[RunSummary]) -> str:
    """The checkpoints of each run, with the main metrics that they recorded."""
    main, lines = _main_metrics(runs), []
    for number, run in enumerate(runs):
        for one in run.checkpoints:
            step = "damaged" if one.step is None else f"{one.step:,}"
            values = ", ".join(f"{name} {_shown(one.values[name])}" for name in main if name in one.values)
            cells = [_run_cell(number, run), _cell(one.name), _cell(step, "number"), _cell(one.saved)]
            cells += [
                _cell(shown_size(one.bytes), "number"),
                _cell("best" if one.best else "", "best" * one.best),
            ]
            lines.append(_row([*cells, _cell(values, "long")]))
    heads = ("run", "checkpoint", "step", "saved", "size", "", "values")
    head = "".join(f"<th{_right(name in ('step', 'size'))}>{name}</th>" for name in heads)
    return _section("Checkpoints", _table([head], lines)) if lines else ""


def text_section(runs: Sequence[RunSummary]) -> str:
    """The last texts that the runs logged, answers of language models say."""
    lines = [
        _row(
            [
                _run_cell(number, run),
                _cell(one.name),
                _cell(f"{one.step:,}", "number"),
                _cell(one.text, "long text"),
            ]
        )
        for number, run in enumerate(runs)
        for one in run.texts
    ]
    head = '<th>run</th><th>text</th><th class="number">step</th><th></th>'
    return _section("Texts", _table([head], lines)) if lines else ""


def warning_section(runs: Sequence[RunSummary]) -> str:
    """Lines of the logs with ``warning:`` or ``error:``."""
    lines = [
        _row([_run_cell(number, run), _cell(text, "long alert"), _cell(f"{count:,}", "number")])
        for number, run in enumerate(runs)
        for text, count in run.warnings.items()
    ]
    head = '<th>run</th><th>line</th><th class="number">times</th>'
    return _section("Warnings and errors", _table([head], lines)) if lines else ""


def finding_section(runs: Sequence[RunSummary]) -> str:
    """Mistakes that raise no error, with what shows them and how to mend them."""
    lines = [
        _row(
            [
                _run_cell(number, run),
                _cell(one.name),
                _cell(one.evidence, "long"),
                _cell(one.cure, "long"),
            ]
        )
        for number, run in enumerate(runs)
        for one in run.findings
    ]
    head = "<th>run</th><th>finding</th><th>what was seen</th><th>cure</th>"
    return _section("Findings", _table([head], lines)) if lines else ""


def swatch(number: int) -> str:
    """The classes of an element that shows the colour of a run."""
    return f"swatch r{number % COLORS}"


def _main_metrics(runs: Sequence[RunSummary]) -> list[str]:
    """Of validation, where there is one; losses first."""
    names = [name for name in _names(runs) if is_metric(name) and not name.endswith("_epoch")]
    validated = [name for name in names if name.startswith("val/")]
    return (validated or names)[:_MAIN]


def _names(runs: Sequence[RunSummary]) -> list[str]:
    names = {one.name for run in runs for one in run.series}
    order = {panel: number for number, panel in enumerate(in_order(place_of(name).panel for name in names))}
    return sorted(names, key=lambda name: (order[place_of(name).panel], name))


def _best_value(name: str, runs: Sequence[RunSummary]) -> float | None:
    found = [run.extremes[name].best(name)[0] for run in runs if name in run.extremes]
    found = [value for value in found if math.isfinite(value)]
    if not found:
        return None
    return min(found) if lower_is_better(name) else max(found)


def _keys(runs: Sequence[RunSummary], values: Sequence[dict[str, Any]], differing: bool = False) -> str:
    """A row for each key: all, or those whose values are not the same; empty where there is none."""
    keys = differing_keys(values) if differing else all_keys(values)
    head = "<th></th>" + "".join(
        f'<th class="{swatch(number)}">{escape(run.label)}</th>' for number, run in enumerate(runs)
    )
    lines = [_row([_cell(key), *(_cell(text_of(one, key), "long") for one in values)]) for key in keys]
    return _table([head], lines) if lines else ""


def _run_cell(number: int, run: RunSummary) -> str:
    return f'<td><span class="{swatch(number)}">{escape(run.label)}</span></td>'


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _number(value: float | None, kind: str, more: str = "") -> str:
    """A number of 6 digits; the exact one is its title."""
    if value is None:
        return f'<td class="{kind}"></td>'
    title = f"{value!r}{more if math.isfinite(value) else ''}"
    return f'<td class="{kind}" title="{title}">{_shown(value)}</td>'


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _right(right: bool) -> str:
    return ' class="number"' if right else ""


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _table(heads: Iterable[str], lines: Iterable[str]) -> str:
    head = "".join(f"<tr>{line}</tr>" for line in heads)
    return f'<div class="table"><table><thead>{head}</thead><tbody>{"".join(lines)}</tbody></table></div>'


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"
