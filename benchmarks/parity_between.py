"""Whether two commits train the same: losses and metrics of a few runs; the first tensor that differs.

    python benchmarks/parity_between.py OLD NEW [--only single ddp] [--replay]

Each commit is checked out into a folder for temporary files and runs the same jobs in this environment, on
the CPU with one thread: a small convolutional net with dropout, shuffled and augmented data, validation,
AdamW with a schedule. Values are compared as they are in metrics.jsonl, bit for bit. Where both commits
write records of their steps, ``paceline diff`` of this checkout names the step; with --replay the tensor.
The exit code is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline import Run
from paceline.callbacks.monitors.step_record import FILE_NAME
from paceline.tools.debug.diff import compare
from paceline.tools.debug.trace import first_tensor

ROOT = Path(__file__).resolve().parents[1]
JOB = Path(__file__).with_name("parity_job.py")
JOBS = {
    "single": {},
    "accumulate": {"accumulate": 2, "clip_grad_norm": 0.5},
    "bf16": {"precision": "bf16"},
    "ddp": {"strategy": "ddp", "devices": 2},
    "fsdp": {"strategy": "fsdp", "devices": 2},
    "zero": {"strategy": "deepspeed_stage_2", "devices": 2},
}
_TIMED = ("time", "perf/")


def main() -> None:
    """Run the jobs of both commits, one after another, and print what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", help="another one; . is the working tree")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--replay", action="store_true", help="name the first tensor that differs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        homes = [
            checked_out(rev, Path(folder) / side)
            for side, rev in (("old", arguments.old), ("new", arguments.new))
        ]
        try:
            found = [compared(name, homes, arguments.replay) for name in arguments.only]
        finally:
            for home in homes:
                git("worktree", "remove", "--force", str(home / "paceline"), check=False)
    sys.exit(not all(found))


def git(*arguments: str, check: bool = True) -> None:
    """Run git in this repository."""
    subprocess.run(["git", *arguments], cwd=ROOT, check=check, capture_output=True)


def checked_out(revision: str, home: Path) -> Path:
    """A folder in which ``paceline`` is the package at a revision."""
    home.mkdir()
    if revision == ".":
        (home / "paceline").symlink_to(ROOT)
    else:
        git("worktree", "add", "--detach", str(home / "paceline"), revision)
    return home


def compared(name: str, homes: list[Path], replay: bool) -> bool:
    """Run one job in both; whether all is the same."""
    runs = [trained(name, home) for home in homes]
    rows = [
        [{k: v for k, v in row.items() if not k.startswith(_TIMED)} for row in run.rows] for run in runs
    ]
    values = sum(len(row) for row in rows[0])
    if rows[0] == rows[1]:
        print(f"{name:<12} the same: {len(rows[0])} rows, {values} values", flush=True)
        return True
    print(f"{name:<12} differs", flush=True)
    first = next(((a, b) for a, b in zip(*rows, strict=False) if a != b), None)
    if first is not None:
        for key in dict.fromkeys([*first[0], *first[1]]):
            a, b = (one.get(key) for one in first)
            if a != b:
                print(f"  step {first[0]['step']}: {key} {a} and {b}")
    if all((run.folder / FILE_NAME).exists() for run in runs):
        difference = compare(*runs)
        if difference.first is not None and replay:
            folders = runs[0].folder, runs[1].folder
            difference.tensor = first_tensor(folders, difference.first, (homes[0], homes[1]), None)
        print("  " + str(difference).replace("\n", "\n  "), flush=True)
    return False


def trained(name: str, home: Path) -> Run:
    """The run of a job under the package in ``home``."""
    words = [f"{key}={value}" for key, value in JOBS[name].items()]
    environment = os.environ | {"PYTHONPATH": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(JOB), name, *words], cwd=home, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{name} failed under {home}:\n{done.stderr[-3000:]}")
    return Run(home / "runs" / name / "1")


if __name__ == "__main__":
    main()
