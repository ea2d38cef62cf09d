"""Programs written for Lightning, under it and under ``paceline.compat.lightning``: a table for the docs.

    python benchmarks/lightning_programs.py [NAME...] [--epochs 10] [--rounds 3] [--out FILE] [--json FILE]

Each program of tests/compat/lightning/programs runs once under each package, with what it does recorded,
for the columns on lines, numbers and hooks. Then it runs as it is, once for so many epochs and once for
four times as many: a few programs in a process, one package after the other, round by round. The difference
of the two is what the added epochs take, with validations, checkpoints and rows of values, without the
start and the end of a fit. Speeds are Lightning's seconds over ours in the same round, the median of the
rounds: above 1 ours is faster. They are given by the clock and, for a machine that does other things too,
by the process's own processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from helpers import lightning_records as records

LONGER = 4
CHUNK = 4  # programs of a process: imports take longer than a program
BY_STEPS = ("litgpt", "skipped_batches")  # these end by max_steps
STEPS_OF_AN_EPOCH = 8
WARM_UP = next(one for one in records.PROGRAMS if one.name == "autoencoder")
KINDS = ("seconds", "processor_seconds")
Seconds = dict[str, dict[str, list[dict[str, float]]]]
"""Of the added epochs: by program, by package, of each round, by kind."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [program.name for program in records.PROGRAMS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--package", default=records.OURS, help="what stands in Lightning's place")
    parser.add_argument("--out", type=Path, help="for the table as markdown")
    parser.add_argument("--json", type=Path, help="for the seconds of each round")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(names):
        parser.error(f"there is no program {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    programs = [one for one in records.PROGRAMS if one.name in (asked.names or names)]
    packages = (records.THEIRS, asked.package)
    with tempfile.TemporaryDirectory() as folder:
        found = [
            records.record(package, Path(folder) / str(n), programs, '--option=accelerator="cpu"')
            for n, package in enumerate(packages)
        ]
        seconds = timed(programs, packages, asked.epochs, asked.rounds, Path(folder))
    rows = [
        row(name, found[0][name], found[1][name], seconds[name]) for name in (one.name for one in programs)
    ]
    text = table(rows)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")
    if asked.json:
        about = {"torch": torch.__version__, "epochs": asked.epochs, "rounds": asked.rounds}
        asked.json.write_text(json.dumps({"about": about, "result": seconds}, indent=1) + "\n")


def timed(
    programs: list[records.Program], packages: tuple[str, str], epochs: int, rounds: int, folder: Path
) -> Seconds:
    """The seconds of a step of each program."""
    found: Seconds = {program.name: {"theirs": [], "ours": []} for program in programs}
    longer = zip(chunks(programs, epochs), chunks(programs, LONGER * epochs), strict=True)
    for (chunk, few), (_, many) in [*longer] * rounds:
        for who, package in zip(("theirs", "ours"), packages, strict=True):
            done = [
                records.record(
                    package, folder / who, [WARM_UP, *chunk], '--option=accelerator="cpu"', option, "--bare"
                )
                for option in (few, many)
            ]
            for program in chunk:
                found[program.name][who].append(seconds_added(*(one[program.name] for one in done)))
    return found


def chunks(programs: list[records.Program], epochs: int) -> list[tuple[list[records.Program], str]]:
    """A few programs at a time, with the option that makes them long."""
    by_steps = [program for program in programs if program.name in BY_STEPS]
    others = [program for program in programs if program not in by_steps]
    found = [
        (others[begin : begin + CHUNK], f"--option=max_epochs={epochs}")
        for begin in range(0, len(others), CHUNK)
    ]
    # one at a time: their warm-up ends by max_steps as well
    return found + [([one], f"--option=max_steps={epochs * STEPS_OF_AN_EPOCH}") for one in by_steps]


def seconds_added(short: records.Found, long: records.Found) -> dict[str, float]:
    """What the added steps took, by kind; NaN where one failed, or early stopping prevented some."""
    failed = "error" in short or "error" in long
    if failed or long["global_step"] < (LONGER - 1) * short["global_step"]:
        return dict.fromkeys(KINDS, float("nan"))
    return {kind: long[kind] - short[kind] for kind in KINDS}


def ratio(seconds: dict[str, list[dict[str, float]]], kind: str) -> str:
    """Lightning's over ours, or why there is none."""
    rounds = zip(seconds["theirs"], seconds["ours"], strict=True)
    found = statistics.median(theirs[kind] / ours[kind] for theirs, ours in rounds)
    return "stops early" if math.isnan(found) else f"{found:.2f}"


def row(
    name: str, theirs: records.Found, ours: records.Found, seconds: dict[str, list[float]]
) -> list[Any]:
    """The cells of a program."""
    for one in (theirs, ours):
        if "error" in one:
            return [name, "", f"fails: {one['error'].strip().splitlines()[-1][:80]}", "", "", ""]
    differ = [
        theirs["state"] != ours["state"],
        bool(records.different_logged(theirs, ours)),
        bool(records.different_metrics(theirs, ours)),
    ]
    numbers = [
        what for what, is_so in zip(("weights", "logged values", "metrics"), differ, strict=True) if is_so
    ]
    equal = f"differ: {', '.join(numbers)}" if numbers else "equal"
    if numbers and theirs["draws"]:
        equal = "draws random numbers"
    calls = len(theirs["calls"])
    differ_in_calls = records.different_calls(theirs, ours, records.ignored_of(name))
    hooks = f"differ ({calls})" if differ_in_calls else f"equal ({calls})"
    return [name, theirs["lines"], equal, hooks, *(ratio(seconds, kind) for kind in KINDS)]


def table(rows: list[list[Any]]) -> str:
    """As markdown."""
    head = ["program", "changed lines", "weights and metrics", "hook calls", "speed", "by processor time"]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


if __name__ == "__main__":
    main()
