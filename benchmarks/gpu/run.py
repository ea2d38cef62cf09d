"""What a GPU shows, in at most nine minutes: one row for each part, the most important first.

    benchmarks/gpu/run.sh [--minutes 9] [--only WORD...] [--json benchmarks/results/gpu_rows.json]
    benchmarks/gpu/run.sh --dry        # on a CPU, tiny: each part starts and gives its row

Each part is a process. What it found is written to the file as soon as it ends, so that a run which is
ended early leaves all before it; a part for which no time is left, or which fails, is a row that says so.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from paceline.callbacks.monitors.peak_flops import peak_flops

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
LOOPS = ("by hand", "paceline", "lightning", "accelerate", "transformers")


@dataclass(frozen=True)
class Part:
    """A row of the table.

    Args:
        name: What it says first.
        command: A file below ``benchmarks`` and its arguments; the last line that it prints is JSON.
        seconds: That it is given at most.
    """

    name: str
    command: tuple[str, ...]
    seconds: int = 120


def parts() -> list[Part]:
    """In their order."""

    def language(name: str, seconds: int = 120) -> Part:
        return Part(name, ("language.py", name), seconds)

    def loops(model: str) -> list[Part]:
        return [
            Part(f"{model}, {loop}", ("throughput.py", "--models", model, "--loop", loop), 90)
            for loop in LOOPS
        ]

    return [
        language("gpt2"),
        language("gpt2, documents joined"),
        *loops("gpt"),
        Part("tests marked gpu", ("gpu/run.py", "--tests"), 240),
        *loops("lora"),
        language("depth 8"),
        language("Llama 8B, LoRA", 180),
        language("wide"),
        language("wide, fp8"),
        *loops("vit"),
        *loops("resnet"),
        Part(
            "checkpoint of 4 GB",
            ("checkpoint.py", "--gigabytes", "4", "--rounds", "2", "--saves", "--json", "-"),
        ),
    ]


def dry(part: Part) -> dict[str, Any]:
    """In this process, and tiny."""
    file, *arguments = part.command
    small = {
        "language.py": ["--dry"],
        "throughput.py": ["--steps", "3", "--workers", "0"],
        "checkpoint.py": ["--gigabytes", "0.02", "--rounds", "1"],
        "gpu/run.py": ["--dry"],
    }[file]
    before, printed = (sys.argv, list(sys.path)), io.StringIO()
    sys.argv, sys.path[:0] = [file, *arguments, *small], [str(BENCHMARKS)]
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(BENCHMARKS / file), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
    return last_line(printed.getvalue())


def last_line(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def run(part: Part, seconds: float) -> dict[str, Any]:
    """What a part found, or why there is nothing."""
    command = [sys.executable, str(BENCHMARKS / part.command[0]), *part.command[1:]]
    # A group of processes, of which none stays when its time is up, nor after Ctrl-C.
    process = subprocess.Popen(
        command,
        cwd=BENCHMARKS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {seconds:.0f} s"}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        return {"failed": (errors.strip().splitlines() or ["no output"])[-1]}
    return last_line(output)


def run_tests(only_collect: bool) -> dict[str, str]:
    """The tests marked ``gpu``; on a machine without one they are collected."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    tests = (ROOT / "tests").rglob("test_*.py")
    files = sorted(str(file) for file in tests if "pytest.mark.gpu" in file.read_text())
    more = ["--collect-only"] if only_collect else []
    done = subprocess.run([*command, *more, *files], cwd=ROOT, capture_output=True, text=True)
    return {"tests": done.stdout.strip().splitlines()[-1]}


def shown(name: str, row: dict[str, Any], rows: dict[str, dict[str, Any]]) -> str:
    """A line of the table."""
    by_hand = rows.get(f"{name.partition(', ')[0]}, by hand", row)
    flops = None
    if "seconds" in row and "samples" in by_hand:
        words = [f"{by_hand['samples'] / row['seconds']:.1f} samples/s", f"{row['memory'] / 2**30:.1f} GiB"]
        words += [
            f"first step {row['first_step']:.1f} s",
            f"{by_hand['seconds'] / row['seconds']:.3f} of by hand",
        ]
        flops = by_hand["flops"] / row["seconds"]
    elif "tokens_per_second" in row:
        words = [f"{row['tokens_per_second']:,} tokens/s", f"{row['memory_gib']} GiB"]
        words.append(f"estimated {row['estimated_gib']} GiB")
        flops = row["flops_per_second"]
    elif "ratios" in row:
        words = [f"stalls for {row['seconds']['background']:.2f} s of {row['seconds']['waited']:.2f}"]
    else:
        words = [str(value) for value in row.values()]
    peak = peak_flops(device_name(), torch.bfloat16)  # of the data sheet
    if flops is not None and peak is not None:
        words.append(f"{flops / peak:.1%} of peak")
    return f"{name:<26}{'  '.join(words)}"


def device_name() -> str:
    there = torch.accelerator.is_available()
    return torch.cuda.get_device_name(torch.accelerator.current_accelerator()) if there else "cpu"


def about() -> dict[str, str]:
    """The machine and what is installed."""
    names = ("torch", "lightning", "accelerate", "transformers", "peft", "deepspeed", "torchao")
    there = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    return {
        "device": device_name(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": ".".join(map(str, sys.version_info[:3])),
    } | {name: there[name] for name in names if name in there}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="parts whose name has one of these")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--tests", action="store_true", help="the tests marked gpu alone")
    given = parser.parse_args()
    if given.tests:
        print(json.dumps(run_tests(given.dry)))
        return
    machine, ends = about(), time.monotonic() + 60 * given.minutes
    rows: dict[str, dict[str, Any]] = {}
    for part in parts():
        if given.only and not any(word in part.name for word in given.only):
            continue
        left = ends - time.monotonic()
        if given.dry:
            rows[part.name] = dry(part)
        elif left < 30:
            rows[part.name] = {"failed": "no time was left"}
        else:
            rows[part.name] = run(part, min(left, part.seconds))
        print(shown(part.name, rows[part.name], rows), flush=True)
        if given.json:
            written = given.json.with_suffix(".part")
            written.write_text(json.dumps({"about": machine, "rows": rows}, indent=1) + "\n")
            written.replace(given.json)


if __name__ == "__main__":
    main()
