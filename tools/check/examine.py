"""A short fit with all checks, then probes of its module and data."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...callbacks import Callback, Checks, JSONLogger, Logger, StepRecord
from ...callbacks.checks.finding import Finding, first_of
from ...trainer.config.built_in import make
from ...trainer.trainer import Trainer
from .not_here import NotHere
from .probe import all_probes
from .subject import Recorder, Subject
from .trials import ALONE, QUIET, given_to

_PROBE_SECONDS = 60.0


@dataclass
class Report:
    """What a program was found to do.

    Attributes:
        findings: Mistakes, each name once.
        not_looked_at: By name of a finding, why a probe of it could not look.
        steps: Optimizer steps of the short fit.
        seconds: That all of it took.
        is_whole_run: Whether the short fit came to the end of the run.
    """

    findings: list[Finding] = field(default_factory=list)
    not_looked_at: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    is_whole_run: bool = False

    def take(self, callbacks: Iterable[Callback]) -> None:
        """Add what checks among the callbacks have found since."""
        for checks in callbacks:
            for one in checks.findings if isinstance(checks, Checks) else ():
                if one.name not in {known.name for known in self.findings}:
                    self.findings.append(one)


def check_fit(
    trainer: Trainer, module: Any, data: tuple[Any, Any, Any], *, seconds: float = 40.0
) -> Report:
    """Train a module for a short time in the place of ``fit``, and look for mistakes that raise no error.

    Nothing is written. The module is trained, on one device of this process.

    Args:
        trainer: Its arguments are those of the fit; it stays as it is.
        module: What is to be trained.
        data: The training and validation dataloaders and the DataModule, as ``fit`` takes them.
        seconds: How long the fit may take.

    Raises:
        PacelineError: and whatever else the fit raises.

    Example:
        >>> from paceline.tools.check.examine import check_fit
        >>> check_fit(trainer, Net(), (train_loader, val_loader, None)).findings
        []
    """
    with tempfile.TemporaryDirectory() as folder:
        twin = Trainer(**short_and_alone(given_to(trainer), seconds, folder))
        training, validation, datamodule = data
        twin.fit(module, training, validation, datamodule=datamodule)
        return examine(twin, module, data)


def short_and_alone(given: dict[str, Any], seconds: float, folder: str | Path) -> dict[str, Any]:
    """The arguments of a Trainer for ``examine``, in the place of those that a user has given.

    Args:
        given: By name, as ``Trainer`` takes them.
        seconds: How long the fit may take.
        folder: Of the run.
    """
    callbacks = given.get("callbacks") or []
    several = [callbacks] if isinstance(callbacks, (str, Callback)) else callbacks
    loaded = [make("callbacks", one) if isinstance(one, str) else one for one in several]
    own = [one for one in loaded if isinstance(one, Checks)]
    checks = Checks(add=[added for one in own for added in one.added])
    checks.skipped = frozenset().union(*(one.skipped for one in own))
    kept = [one for one in loaded if not isinstance(one, (Checks, Logger, StepRecord))]
    added = [checks, Recorder(), JSONLogger()]  # a script may read the values of its run
    short = {"max_time": f"{seconds:g}s", "run_dir": folder, "callbacks": [*kept, *added]}
    return given | QUIET | ALONE | short


def examine(trainer: Trainer, module: Any, data: tuple[Any, Any, Any]) -> Report:
    """What is found of a fit that has ended, of a Trainer with the arguments of ``short_and_alone``.

    Args:
        trainer: It has trained.
        module: What it was given.
        data: Likewise, as ``check_fit`` takes it.
    """
    checks = next(one for one in trainer.callbacks if isinstance(one, Checks))
    record = next(one for one in trainer.callbacks if isinstance(one, Recorder))
    subject = Subject(trainer, module, checks, record, data, time.monotonic() + _PROBE_SECONDS)
    report = Report(list(checks.findings), steps=trainer.global_step, is_whole_run=not subject.is_cut)
    _probe_all(subject, report, checks.skipped)
    report.seconds = time.monotonic() - record.begun
    return report


def _probe_all(subject: Subject, report: Report, skipped: frozenset[str]) -> None:
    found = {one.name for one in report.findings}
    tried: set[str] = set()
    for one in all_probes():
        if one.name in found or one.name in skipped:
            continue
        if subject.seconds_left <= 0:
            report.not_looked_at.setdefault(one.name, "no time was left")
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                evidence = first_of(one.look(subject))
        except NotHere:
            continue
        except LookupError as error:
            if one.name not in tried:
                report.not_looked_at.setdefault(one.name, str(error).strip("'\""))
            continue
        except Exception as error:
            report.not_looked_at.setdefault(one.name, f"{type(error).__name__}: {error}"[:200])
            continue
        tried.add(one.name)
        if evidence is not None:
            found.add(one.name)
            report.findings.append(
                Finding(one.name, evidence.seen, evidence.cure, subject.trainer.global_step)
            )
    for name in found:
        report.not_looked_at.pop(name, None)
