"""``--cost FOLDER``: what a run of the tests took, as JSON, which ``tests/cost.py`` prints."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).resolve().parents[1] / "durations.json"
"""Seconds by test file, of the last ``make test-cost``: the longest are begun first."""


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--cost", metavar="FOLDER", help="write there what each test took, as JSON")


def keep_order(config: pytest.Config) -> None:
    """Have xdist begin files in the order of the items; its own is by the number of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def begin_with_the_longest(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files of a run on several workers, so that no long one is begun last."""
    if not hasattr(config, "workerinput"):
        return
    seconds = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))


class Recorder:
    """Notes the seconds of each test's set-up, call and teardown, and what the machine did meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._begun = folder.absolute(), time.time()
        self._before = _machine()
        self._tests: dict[str, dict[str, float]] = defaultdict(dict)
        self._outcomes: dict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid][report.when or "call"] = round(report.duration, 3)
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.outcome] += 1
        if report.failed:  # a run that is killed prints no summary
            print(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext[-2000:]}", flush=True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        seconds = time.time() - self._begun
        used = {name: after - self._before[name] for name, after in _machine().items()}
        found: dict[str, Any] = {
            "arguments": list(session.config.invocation_params.args),
            "workers": getattr(session.config.option, "numprocesses", None) or 1,
            "seconds": round(seconds, 1),
            "cores": os.cpu_count(),
            **{name: round(value, 1) for name, value in used.items()},
            "outcomes": dict(self._outcomes),
            "tests": dict(self._tests),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._begun:.0f}-{os.getpid()}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")


def _machine() -> dict[str, float]:
    """Since it was started: CPU seconds used and idle over all cores, and processes and threads started."""
    lines = Path("/proc/stat").read_text().splitlines() if Path("/proc/stat").exists() else []
    fields = {name: list(map(int, values)) for name, *values in map(str.split, lines)}
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, idle, waiting = fields.get("cpu", [0] * 5)[:5]
    return {
        "cpu_seconds": (user + nice + system) / ticks,
        "idle_seconds": (idle + waiting) / ticks,
        "started": float(fields.get("processes", [0])[0]),
    }
