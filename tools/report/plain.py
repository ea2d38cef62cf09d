"""Runs as plain data: what a page says of them, but for the points of its charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...callbacks.pictures.panels import is_metric
from ...trainer.run.ending import read_ending
from ...trainer.run.facts import Extremes
from .summary import RunSummary, SavedCheckpoint, ShownFinding, differing_keys


@dataclass(frozen=True)
class ReportedValue:
    """What was logged under one name.

    Attributes:
        last: The last value.
        min: The lowest finite value; None where no value is finite.
        min_step: The first step that has it; None where none does.
        max: The highest finite value; None where no value is finite.
        max_step: The first step that has it; None where none does.
        best: ``min`` of what is called a loss, an error or a perplexity, else ``max``; None also of what is
            no metric, such as learning rates and speeds.
        best_step: The first step that has it; None where ``best`` is.
    """

    last: float
    min: float | None
    min_step: int | None
    max: float | None
    max_step: int | None
    best: float | None
    best_step: int | None


@dataclass(frozen=True)
class ReportedRun:
    """One run.

    Attributes:
        label: Its name among these runs, as short as it can be.
        folder: Its folder.
        state: ``running``: a process of this machine trains in the folder; ``ended``: in order, also by a
            signal; ``failed``: with an error; ``unknown``: its log does not say, as of a run that was
            killed, of one on another machine, and of one with ``progress=False``.
        reason: Why it ended, or the first line of its error; None where that is not known.
        started: When, in local time, to the minute; "" where that is not known.
        seconds: How long it had trained when it logged its last values.
        steps: Optimizer steps, as far as its rows and checkpoints know.
        epochs: How many it has begun.
        devices: How many of what; after a resume on others ``8 cuda, then 4 cuda from step 201``.
        strategy: By name; after a resume under another one ``A, then B from step 201``.
        precision: By name; after a resume in another one ``32, then bf16 from step 201``.
        values: What it logged, by full name such as ``val/loss``.
        checkpoints: Those that it can resume from, oldest first.
        warnings: Lines of its log with ``warning:`` or ``error:``, and how often each was repeated.
        findings: Mistakes that raise no error: name, evidence, cure.
        crash_reports: Files ``crash-rank-<n>.txt`` in its folder, also of sessions before a resume.
    """

    label: str
    folder: str
    state: str
    reason: str | None
    started: str
    seconds: float
    steps: int
    epochs: int
    devices: str
    strategy: str
    precision: str
    values: dict[str, ReportedValue]
    checkpoints: list[SavedCheckpoint]
    warnings: dict[str, int]
    crash_reports: list[str]
    findings: list[ShownFinding]


@dataclass(frozen=True)
class ReportedDifference:
    """A setting that is not the same in all runs.

    Attributes:
        key: Its dotted name.
        values: In the order of the runs; None also where a run does not have it.
    """

    key: str
    values: list[Any]


@dataclass(frozen=True)
class Report:
    """What ``paceline report --json`` prints.

    Attributes:
        runs: As they were named; those below one folder by their numbers.
        config: The keys of config.yaml that differ between the runs.
        environment: The keys of env.json that do, without what is never the same twice.
    """

    runs: list[ReportedRun]
    config: list[ReportedDifference]
    environment: list[ReportedDifference]


def report_of(runs: Sequence[RunSummary]) -> Report:
    """Runs as plain data.

    Args:
        runs: At least one.
    """
    return Report(
        [_run(run) for run in runs],
        _differences([run.config for run in runs]),
        _differences([run.environment for run in runs]),
    )


def _run(run: RunSummary) -> ReportedRun:
    facts, ending = run.facts, read_ending(run.folder)
    return ReportedRun(
        label=run.label,
        folder=str(run.folder),
        state=ending.state,
        reason=ending.reason,
        started=facts.started,
        seconds=facts.seconds,
        steps=max([facts.steps, *(one.step or 0 for one in run.checkpoints)]),
        epochs=facts.epochs,
        devices=facts.devices,
        strategy=facts.strategy,
        precision=facts.precision,
        values={name: _value(name, found) for name, found in run.extremes.items()},
        checkpoints=run.checkpoints,
        warnings=run.warnings,
        crash_reports=sorted(str(file) for file in run.folder.glob("crash-rank-*.txt")),
        findings=run.findings,
    )


def _value(name: str, found: Extremes) -> ReportedValue:
    low = _known(found.low, found.low_step)
    high = _known(found.high, found.high_step)
    best = _known(*found.best(name)) if is_metric(name) else (None, None)
    return ReportedValue(found.last, *low, *high, *best)


def _known(value: float, step: int) -> tuple[float | None, int | None]:
    return (value, step) if math.isfinite(value) else (None, None)


def _differences(found: Sequence[dict[str, Any]]) -> list[ReportedDifference]:
    return [ReportedDifference(key, [one.get(key) for one in found]) for key in differing_keys(found)]
