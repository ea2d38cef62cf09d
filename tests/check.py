"""Runs the tests that a change can affect, nearest first, within a budget of seconds.

python tests/check.py [--base REVISION] [--budget SECONDS] [--all] [--dry-run]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from affected import ROOT, SECONDS, Graph, Selection, changed_files, is_test, listed, select

WORKERS = 3
CORES = 2
START = 20  # seconds, until the workers have imported torch and collected
_DISTANCES = ("changed or mirror what did", "name what changed", "name something that does")


def main(arguments: Iterable[str] | None = None) -> int:
    """Select, say what is left out, and run; pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="HEAD", help="the revision to compare with")
    parser.add_argument("--budget", type=float, default=180, help="seconds")
    parser.add_argument("--all", action="store_true", help="whatever it takes")
    parser.add_argument("--dry-run", action="store_true", help="select only")
    given = parser.parse_args(arguments)
    changed = changed_files(ROOT, given.base)
    graph = Graph(files={*listed(ROOT), *changed})  # those that were deleted too: who still names them?
    budget = float("inf") if given.all else max(given.budget - START, 0) * CORES
    selection = select(graph, changed, budget)
    print(report(changed, selection, len(graph.tests)), flush=True)
    if given.dry_run or not selection.run:
        return 0
    return run(selection.run)


def report(changed: Iterable[str], selection: Selection, all_tests: int) -> str:
    """What changed, what runs, and what does not."""
    changed = list(changed)
    if not changed:
        return "nothing has changed"
    affected = {test.split("::")[0] for test in (*selection.run, *selection.left_out)}
    ready = selection.seconds / CORES + START
    lines = [
        f"{len(changed)} files changed; they can affect {len(affected)} of {all_tests} test files",
        *_by_distance("runs", selection.run),
        *(f"    {test}" for test in selection.run),
        *_by_distance("left out", selection.left_out),
        f"about {ready:.0f} s",
    ]
    if selection.left_out:
        nearest = [t for t, d in selection.left_out.items() if d == min(selection.left_out.values())]
        lines += ["the nearest of those left out; make check ALL=1 runs all of them:", *_few(nearest)]
    return "\n".join(lines)


def _few(tests: list[str]) -> list[str]:
    more = [f"    ... and {len(tests) - 10} more"] if len(tests) > 10 else []
    return [f"    {test}" for test in tests[:10]] + more


def _by_distance(what: str, tests: Mapping[str, float]) -> list[str]:
    counts = sorted(Counter(map(int, tests.values())).items())
    names = dict(enumerate(_DISTANCES))
    return [f"{what}: {count} that {names.get(d, f'are {d} names away')}" for d, count in counts]


def run(tests: Iterable[str]) -> int:
    """Run them in their order, and keep how long each file takes on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "junit.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(WORKERS), "--dist", "loadfile"]
        command += [f"--junitxml={written}", "-o", "junit_family=xunit1"]
        done = subprocess.run([*command, *tests], cwd=ROOT)
        if written.exists():
            keep(written, ROOT / SECONDS[-1], {test for test in tests if is_test(test)})
    return done.returncode


def keep(junit: Path, file: Path, whole: set[str]) -> None:
    """Write what each file took that has run as a whole."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(junit).iter("testcase"):
        seconds[case.get("file", "")] += float(case.get("time", 0))
    known = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(exist_ok=True)
    known |= {test: round(took, 1) for test, took in seconds.items() if test in whole}
    file.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")


if __name__ == "__main__":
    sys.exit(main())
