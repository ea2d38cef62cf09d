"""Prints what runs of the tests took: the slowest tests and files, processes started, idle cores.

    python tests/cost.py FOLDER [--tests 60] [--write]

FOLDER has what ``pytest --cost FOLDER`` wrote; ``make test-cost`` does both. ``--write`` keeps the seconds
of each file in tests/durations.json, which decides the order of files in a run on several workers.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from helpers.cost import DURATIONS

PHASES = ("setup", "call", "teardown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tests", type=int, default=60, help="how many of the slowest tests are printed")
    parser.add_argument("--write", action="store_true", help="write tests/durations.json")
    arguments = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in sorted(arguments.folder.glob("*.json"))]
    for run in runs:
        print_run(run)
    tests = {name: phases for run in runs for name, phases in run["tests"].items()}
    print_slowest(tests, arguments.tests)
    if arguments.write:
        files = {name: round(s, 1) for name, s in sorted(by_file(tests).items())}
        DURATIONS.write_text(json.dumps({n: s for n, s in files.items() if s >= 0.5}, indent=0) + "\n")


def print_run(run: dict[str, Any]) -> None:
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(run["outcomes"].items()))
    print(f"pytest {' '.join(run['arguments'])}")
    print(f"  {run['seconds']:.0f} s on {run['workers']} workers: {outcomes}")
    print(
        f"  {run['cpu_seconds']:.0f} CPU seconds, {run['idle_seconds']:.0f} idle on {run['cores']} cores;"
        f" {run['started']:.0f} processes and threads started"
    )


def print_slowest(tests: dict[str, dict[str, float]], most: int) -> None:
    """The slowest tests with set-up and teardown apart, then the slowest files."""
    print(f"\n{'setup':>8}{'call':>8}{'teardown':>10}  the {most} slowest tests, in seconds")
    slowest = sorted(tests.items(), key=lambda item: -sum(item[1].values()))[:most]
    for name, phases in slowest:
        setup, call, teardown = (phases.get(phase, 0) for phase in PHASES)
        print(f"{setup:8.1f}{call:8.1f}{teardown:10.1f}  {name}")
    print(f"\n{'seconds':>8}{'tests':>8}  the {most // 2} slowest files")
    count = Counter(name.partition("::")[0] for name in tests)
    for name, seconds in by_file(tests).most_common(most // 2):
        print(f"{seconds:8.1f}{count[name]:8}  {name}")


def by_file(tests: dict[str, dict[str, float]]) -> Counter[str]:
    """Seconds of all tests of each file."""
    found: Counter[str] = Counter()
    for name, phases in tests.items():
        found[name.partition("::")[0]] += sum(phases.values())
    return found


if __name__ == "__main__":
    main()
