"""Runs as plain data for a picture or a page."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ...callbacks.loggers.series import Series, read_findings, read_series
from ...callbacks.pictures.panels import in_order, place_of
from ...errors import PacelineError, nearest
from ...trainer.checkpoint.files import format as files
from ...trainer.checkpoint.files.reading import read_manifest
from ...trainer.run.facts import Extremes, Facts, extremes_of, read_facts
from ...trainer.run.run import Run, described


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint of a run.

    Attributes:
        name: The name of its folder.
        step: Optimizer steps that were done; None where the manifest is damaged.
        saved: When, in local time, to the minute.
        bytes: The size of all its files; 0 where the manifest is damaged.
        best: Whether the pointer ``best`` names it.
        values: The metrics that it recorded, by full name.
    """

    name: str
    step: int | None
    saved: str
    bytes: int
    best: bool
    values: dict[str, Any]


class LoggedText(NamedTuple):
    """A text that a run logged.

    Attributes:
        name: The full name, ``train/samples``.
        step: Of the optimizer.
        text: The text, or its beginning.
    """

    name: str
    step: int
    text: str


class ShownFinding(NamedTuple):
    """A mistake that raises no error, as a run has shown it.

    Attributes:
        name: Of the finding, ``hidden-weights``.
        evidence: What was seen.
        cure: How to mend it.
    """

    name: str
    evidence: str
    cure: str


@dataclass(frozen=True, eq=False)
class RunSummary:
    """What a page says about a run.

    Attributes:
        label: Its name among the runs of the page.
        folder: Where it is.
        facts: When, how long, on what.
        config: config.yaml by dotted key.
        environment: env.json by dotted key.
        series: Its values.
        checkpoints: Oldest first.
        warnings: Lines of the log with ``warning:`` or ``error:``, and how often each was repeated.
        texts: The last three of each name.
        findings: Mistakes that raise no error, in the order in which they were found.
    """

    label: str
    folder: Path
    facts: Facts
    config: dict[str, Any]
    environment: dict[str, Any]
    series: list[Series]
    checkpoints: list[SavedCheckpoint]
    warnings: dict[str, int]
    texts: list[LoggedText] = field(default_factory=list)
    findings: list[ShownFinding] = field(default_factory=list)

    @cached_property
    def extremes(self) -> dict[str, Extremes]:
        """By full name: the last, lowest and highest value."""
        return {one.name: extremes_of(one) for one in self.series}


def all_keys(values: Sequence[dict[str, Any]]) -> list[str]:
    """The keys that some of these have, in their order."""
    return list(dict.fromkeys(key for one in values for key in one))


def differing_keys(values: Sequence[dict[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of these."""
    return [key for key in all_keys(values) if len({text_of(one, key) for one in values}) > 1]


def text_of(values: dict[str, Any], key: str) -> str:
    """A value for people; "" where there is none."""
    if key not in values:
        return ""
    value = values[key]
    return value if isinstance(value, str) else "none" if value is None else str(value)


def labels_of(folders: Sequence[Path]) -> list[str]:
    """A short name for each run: as many of the last parts of its path as it takes to tell them apart."""
    for depth in range(2, max(len(folder.parts) for folder in folders) + 1):
        labels = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]


def summarize(runs: Sequence[Run]) -> list[RunSummary]:
    """Read the runs.

    Raises:
        PacelineError: when a file of a run cannot be understood.
    """
    from tqdm import tqdm

    labels = labels_of([run.folder for run in runs])
    shown = tqdm(runs, "reading runs", leave=False, delay=0.5, disable=not sys.stderr.isatty())
    return [_summary(run, label) for run, label in zip(shown, labels, strict=True)]


def _summary(run: Run, label: str) -> RunSummary:
    rows, (config, environment) = run.rows, described(run)
    log = _lines(run.folder / "log.txt")
    findings = _findings(run.folder / "metrics.jsonl")
    shown = {f"warning: {one.evidence} ({one.name})" for one in findings}
    return RunSummary(
        label=label,
        folder=run.folder,
        facts=read_facts(run.folder, config, environment, rows),
        config=_flat(config),
        environment=_flat(_compared(environment)),
        series=read_series(rows),
        checkpoints=_checkpoints(run),
        warnings={line: count for line, count in _warnings(log).items() if line not in shown},
        texts=_texts(run.folder / "media"),
        findings=findings,
    )


_LAST_TEXTS = 3
_TEXT_LENGTH = 4000


def _texts(media: Path) -> list[LoggedText]:
    """The last texts of each name, oldest first."""
    found = []
    for folder in sorted({file.parent for file in media.rglob("step-*.txt")}):
        for file in sorted(folder.glob("step-*.txt"))[-_LAST_TEXTS:]:
            text = file.read_text(encoding="utf-8", errors="replace")[:_TEXT_LENGTH]
            name = folder.relative_to(media).as_posix()
            found.append(LoggedText(name, int(file.stem.removeprefix("step-")), text))
    return found


_OF_MACHINE = ("versions", "torch", "platform", "git", "variables")


def _compared(environment: dict[str, Any]) -> dict[str, Any]:
    """env.json without what is never the same twice: free memory, say."""
    machine = environment.get("machine")
    if not isinstance(machine, dict):
        return environment
    return environment | {"machine": {name: machine[name] for name in _OF_MACHINE if name in machine}}


def _flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted key; lists stay values."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _checkpoints(run: Run) -> list[SavedCheckpoint]:
    best, found = run.best, []
    for folder in run.checkpoints:
        at = time.localtime((folder / files.MANIFEST).stat().st_mtime)
        try:
            manifest = read_manifest(folder)
        except PacelineError:
            manifest = {}
        found.append(
            SavedCheckpoint(
                name=folder.name,
                step=manifest["counters"]["global_step"] if manifest else None,
                saved=time.strftime("%Y-%m-%d %H:%M", at),
                bytes=sum(entry["bytes"] for entry in manifest.get("files", {}).values()),
                best=folder == best,
                values=manifest.get("metrics", {}),
            )
        )
    return found


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []


def _warnings(log: Sequence[str]) -> dict[str, int]:
    lines = (line.partition(" ")[2] for line in log if "warning:" in line or "error:" in line)
    return dict(Counter(line.strip() for line in lines))


def _findings(path: Path) -> list[ShownFinding]:
    found = read_findings(path) if path.is_file() else []
    return [ShownFinding(one["finding"], one["evidence"], one["cure"]) for one in found]


def chosen_panels(runs: Sequence[RunSummary], metrics: Sequence[str] = ()) -> list[str]:
    """The panels of some runs in their order, or those of the metrics that are asked for.

    Args:
        runs: Of which.
        metrics: Full names such as ``val/loss``, or titles of panels such as ``loss``.

    Raises:
        PacelineError: when no run has one, naming the nearest.
    """
    places = {one.name: place_of(one.name).panel for run in runs for one in run.series}
    if not places:
        raise PacelineError(
            "nothing was logged, so there is nothing to draw", code="not-in-run", where=str(runs[0].folder)
        )
    if not metrics:
        return in_order(places.values())
    for name in metrics:
        if name not in places and name not in places.values():
            known = list(dict.fromkeys([*places, *places.values()]))
            raise PacelineError(
                f"no run has a metric {name!r}",
                code="not-in-run",
                allowed=", ".join(sorted(known)),
                meant=nearest(name, known),
            )
    return list(dict.fromkeys(places.get(name, name) for name in metrics))


def is_chosen(name: str, metrics: Sequence[str]) -> bool:
    """Whether a value is asked for: by its full name, by its panel, or because nothing is."""
    return not metrics or name in metrics or place_of(name).panel in metrics
