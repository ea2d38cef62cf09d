"""What is found in programs with one mistake that raises no error, and in right ones.

python benchmarks/silent_mistakes/run.py [--check] [--family F] [--program P] [--json FILE] [--verbose]

Each program of ``faulty/`` and ``right/`` trains in its own process with the default callbacks. A fault is
found where a finding has one of the names that the program says; any finding in a right program is a false
alarm. With ``--check`` each program is looked at as ``paceline check`` does. ``--json`` keeps the results
(``benchmarks/results/silent_mistakes.json``); of a part of the programs, beside those of the others.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch

import paceline
from paceline import PacelineError, Trainer
from paceline.callbacks import Checks
from paceline.callbacks.checks.observer import Observer
from paceline.callbacks.checks.table import built_in_checks
from paceline.callbacks.pictures import curves
from paceline.tools.rerun.check_request import CheckRequest
from paceline.tools.rerun.check_trainer import CheckTrainer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # programs import each other's tasks by the folder's name

from silent_mistakes.forks import in_forks  # noqa: E402
from silent_mistakes.programs import PROGRAMS, Program  # noqa: E402

DEADLINE = 120.0


def load_programs() -> None:
    """Import every file of ``faulty/`` and ``right/``."""
    for path in sorted((*HERE.glob("faulty/**/*.py"), *HERE.glob("right/**/*.py"))):
        name = ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
        importlib.import_module(name.removesuffix(".__init__"))


def trainer_class() -> Any:
    """The Trainer that programs are called with: it writes little, and nothing to the console."""
    return functools.partial(Trainer, progress=False, loggers=["-curves", "-tensorboard"])


def check_program(name: str) -> dict[str, Any]:
    """As ``run_program``, by a check."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "report.json"
        os.environ |= CheckRequest(str(out), 20.0, later_seconds=DEADLINE).variables()
        vars(paceline)["Trainer"] = CheckTrainer
        begun, error = time.perf_counter(), ""
        try:
            _, error, _ = _run(name, functools.partial(CheckTrainer, progress=False))
        except Exception:  # of a program that looks for what its run would have written
            if not out.exists():
                raise
        seconds = time.perf_counter() - begun
        found = json.loads(out.read_text()) if out.exists() else {"findings": [], "not_looked_at": {}}
        error = "" if out.exists() else error
    return {
        "findings": {one["name"]: one["evidence"] for one in found["findings"]},
        "seconds": seconds,
        "error": error,
        "failed_checks": [f"{name}: {why}" for name, why in found["not_looked_at"].items()],
    }


def run_program(name: str) -> dict[str, Any]:
    """Train; what was found, and how long it took."""
    made: list[Checks] = []
    build = Checks.__init__

    def noted(self: Checks, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        made.append(self)

    fail, failures = Observer._fail, []

    def failed(self: Observer, error: Exception) -> None:
        failures.append(f"{type(error).__name__}: {error}")
        fail(self, error)

    Checks.__init__, Observer._fail = noted, failed  # type: ignore[method-assign]
    seconds, error, lines = _run(name, trainer_class())
    findings = {one.name: f"step {one.step}: {one.evidence}" for each in made for one in each.findings}
    ended = failures + [line for line in lines if "failed, and is skipped" in line]
    return {"findings": findings, "seconds": seconds, "error": error, "failed_checks": ended}


def _run(name: str, trainer: Any) -> tuple[float, str, list[str]]:
    """The seconds that a program took, why it was refused, and what it printed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    curves.start_drawing = lambda *arguments: None  # type: ignore[assignment]
    warnings.simplefilter("ignore")
    logging.disable()
    error, output = "", io.StringIO()
    begun = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        try:
            PROGRAMS[name].run(trainer)
        except PacelineError as raised:
            error = f"refused: {raised.code}: {str(raised).splitlines()[0]}"
        except SystemExit:
            pass
    return time.perf_counter() - begun, error, output.getvalue().splitlines()


def judge(program: Program, result: Any) -> dict[str, Any]:
    """A row of the results."""
    row = {"family": program.family, "area": program.area, "expected": sorted(program.findings)}
    if isinstance(result, Exception):
        return row | {"state": "error", "error": str(result), "findings": {}, "seconds": 0.0}
    found = set(result["findings"])
    if program.findings:
        refused = result["error"].startswith("refused")
        state = "found" if found & program.findings else "refused" if refused else "missed"
    else:
        state = "false alarm" if found else "quiet"
        if found and program.debatable:
            state = "debatable"
    return row | result | {"state": state, "seconds": round(result["seconds"], 2)}


def report(rows: dict[str, dict[str, Any]], verbose: bool) -> None:
    """Print what was found, missed and falsely shown."""
    faulty = {name: row for name, row in rows.items() if row["expected"]}
    right = {name: row for name, row in rows.items() if not row["expected"]}
    for name, row in sorted(rows.items(), key=lambda item: (item[1]["family"], item[0])):
        if verbose or row["state"] in ("false alarm", "error"):
            what = "; ".join(f"{one} ({text})" for one, text in row["findings"].items())
            expected = ", ".join(row["expected"])
            print(f"{row['state']:12} {row['family']}/{name} [{expected}] {what} {row['error']}")
    for family in sorted({row["family"].rpartition("/")[0] for row in faulty.values()}):
        states = [row["state"] for row in faulty.values() if row["family"].rpartition("/")[0] == family]
        print(f"{family}: {states.count('found')} of {len(states)} found")
    states = [row["state"] for row in faulty.values()]
    found, refused = states.count("found"), states.count("refused")
    if faulty:
        print(
            f"faulty programs: {len(states)}; found {found} ({100 * found / len(states):.0f} %), "
            f"refused {refused}, missed {states.count('missed')}, ended by an error {states.count('error')}"
        )
        also = sum(bool(set(row["findings"]) - set(row["expected"])) for row in faulty.values())
        print(f"  with another finding too: {also}")
    if right:
        states = [row["state"] for row in right.values()]
        print(
            f"right programs: {len(states)}; false alarms {states.count('false alarm')}, debatable ones "
            f"with a finding {states.count('debatable')}, ended by an error {states.count('error')}"
        )
    failed = {name: row["failed_checks"] for name, row in rows.items() if row.get("failed_checks")}
    print(f"programs in which a check could not look: {len(failed)}")
    for name, why in failed.items() if verbose else ():
        print(f"  {name}: {'; '.join(dict.fromkeys(why))}")
    seconds = [row["seconds"] for row in rows.values()]
    print(f"seconds for a program: median {statistics.median(seconds):.2f}, most {max(seconds):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--family", action="append", help="begins with this: faulty/model, right")
    parser.add_argument("--program", action="append")
    parser.add_argument("--check", action="store_true", help="as paceline check looks at them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", action="store_true", help="a line for each program")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    load_programs()
    built_in_checks()  # which each process would import
    chosen = [
        name
        for name, program in PROGRAMS.items()
        if (not options.program or name in options.program)
        and (not options.family or program.family.startswith(tuple(options.family)))
    ]
    results = in_forks(check_program if options.check else run_program, chosen, options.processes, DEADLINE)
    rows = {name: judge(PROGRAMS[name], results[name]) for name in chosen}
    report(rows, options.verbose)
    if options.json:
        kept = json.loads(options.json.read_text()) if options.json.exists() else {}
        kind = "check" if options.check else "defaults"
        others = kept.get(kind, {}) if options.program or options.family else {}
        kept[kind] = dict(sorted((others | rows).items()))
        options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
