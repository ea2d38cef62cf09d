"""All checks of ``paceline doctor``, one after another."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..strategies.launch.environment import LauncherRank
from ..tools.rerun.one_step_trainer import OneStepRequest
from ..trainer.utils.machine import cgroup_limits, processors
from . import machine_checks as machine
from .finding import FAILED, SKIPPED, Finding, of_error
from .rank_work import SECTIONS
from .strategies_examined import Group, Maker, examine, groups, name_of
from .target import Target, run_target
from .world_checks import check_devices, check_launcher, this_launch

_WORKERS = 8  # of a loader, that a rank can be expected to have
_MACHINE_CHECKS = 8
_SECONDS = 20.0  # for a check of the machine


@dataclass
class Examination:
    """What is to be checked.

    Args:
        strategies: Names; tests pass classes.
        devices: How many ranks; None is all devices, and 2 on a CPU.
        accelerator: As the Trainer takes it.
        target: What a user trains; None for nothing.
        own_strategies: Under which strategies the target is run; None is the one that it has itself.
        run_dir: Where runs are to be written.
        workers: Of a loader, in each rank; None is 8, or as many as there are processors.
        seconds: How long one check may take.

    Attributes:
        ranks: How many ranks there are; 0 before that is known.
        kind: The kind of device.
    """

    strategies: Sequence[Maker]
    devices: int | None = None
    accelerator: str = "auto"
    target: Target | None = None
    own_strategies: Sequence[str | None] = (None,)
    run_dir: Path = Path("runs")
    workers: int | None = None
    seconds: float = 60.0
    ranks: int = 0
    kind: str = ""
    findings: list[Finding] = field(default_factory=list)

    def is_for_another_rank(self) -> bool:
        """Whether a launcher started this process as another rank than the first one of its machine."""
        launched = this_launch()
        return isinstance(launched, LauncherRank) and launched.local_rank > 0

    def run(self) -> list[Finding]:
        """Do all checks. No process outlives this call, whatever ends it.

        Raises:
            PacelineError: for a strategy or a script that does not exist.
        """
        from tqdm import tqdm

        if self.target is not None:
            self.target.check()
        with tempfile.TemporaryDirectory(prefix="paceline-doctor-", dir=_temporary_folder()) as place:
            groups(Path(place), self.strategies, 1, self.accelerator, self.seconds)  # the names are right
            total = _MACHINE_CHECKS + len(self.strategies) * len(SECTIONS)
            total += len(self.own_strategies) if self.target is not None else 0
            with tqdm(total=total, file=sys.stderr, disable=None, leave=False, unit="check") as bar:

                def advance(count: int, doing: str) -> None:
                    bar.set_description_str(doing, refresh=False)
                    bar.update(count)
                    bar.refresh()

                for finding in self._all(Path(place), advance):
                    self.findings.append(finding)
        return self.findings

    def _all(self, place: Path, advance: Callable[[int, str], None]) -> Iterator[Finding]:
        first = time.time(), time.monotonic()
        launched = this_launch()
        if isinstance(launched, Finding):
            yield launched
        for finding in self._machine(launched):
            yield finding
            advance(1, finding.check)
        if not self.ranks or self.findings[0].outcome == FAILED:  # the launcher's is the first
            yield from self._none_can_start()
        else:
            yield from self._strategies(place, advance)
            for strategy in self.own_strategies if self.target is not None else ():
                advance(0, "TARGET")
                yield self._target(strategy, place)
                advance(1, "")
        yield machine.check_clock(first, (time.time(), time.monotonic()), _installed())

    def _machine(self, launched: LauncherRank | Finding | None) -> Iterator[Finding]:
        asked = self.devices
        if not isinstance(launched, Finding):
            yield check_launcher(self.devices, launched)
            if launched is not None and asked is None:
                asked = launched.local_world_size
        finding, self.kind, self.ranks = check_devices(self.accelerator, asked)
        yield finding
        here, usable = max(self.ranks, 1), processors(cgroup_limits()[0])
        workers = min(_WORKERS, usable) if self.workers is None else self.workers
        checks: dict[str, Callable[[], Finding]] = {
            "run folder": partial(machine.check_folder, "run folder", self.run_dir.absolute()),
            "temporary folder": machine.check_temporary_folder,
            "open files": partial(machine.check_open_files, workers),
            "shared memory": partial(machine.check_shared_memory, here),
            "threads": partial(machine.check_threads, here, usable, os.environ),
        }
        for name, check in checks.items():
            yield machine.within(_SECONDS, name, check)
        yield machine.check_loader_workers(_SECONDS)

    def _strategies(self, place: Path, advance: Callable[[int, str], None]) -> Iterator[Finding]:
        reached = 0

        def progress(count: int, doing: str) -> None:
            nonlocal reached
            advance(max(0, before + count - reached), doing)
            reached = max(reached, before + count)

        before = 0
        for group in groups(place, self.strategies, self.ranks, self.kind, self.seconds):
            yield from _examined(group, progress)
            before += len(group.makers) * len(SECTIONS)

    def _target(self, strategy: str | None, place: Path) -> Finding:
        assert self.target is not None
        request = OneStepRequest(
            str(place / "note"), self.ranks, self.kind, strategy, max(1, int(self.seconds))
        )
        return run_target(self.target, request, place)

    def _none_can_start(self) -> Iterator[Finding]:
        for maker in self.strategies:
            for check in SECTIONS:
                yield Finding(check, SKIPPED, "no ranks can be started", strategy=name_of(maker))


def _examined(group: Group, progress: Callable[[int, str], None]) -> Iterator[Finding]:
    """The findings of a group; where even one device does not train, that is one of them."""
    try:
        yield from examine(group, progress)
    except Exception as error:
        cure = "one device cannot train here either: see `paceline env`"
        yield of_error("training on one device", error, cure)


def _temporary_folder() -> str | None:
    """Where the checks' own files go: the folder for temporary files, else shared memory."""
    with suppress(OSError):
        with tempfile.TemporaryFile() as file:
            file.write(b"\0" * (1 << 20))
        return None
    return str(machine.SHARED_MEMORY)


def _installed() -> float:
    """When this package was installed, in seconds since the epoch."""
    return Path(__file__).stat().st_mtime
