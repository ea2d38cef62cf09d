"""The same work as programs for this trainer, for Lightning's and for that of transformers.

python benchmarks/side_by_side.py [--rounds 5] [--json benchmarks/results/side_by_side.json]

The programs are in ``side_by_side/``: one file for each task and trainer, as its documentation would write
it, with validation and a checkpoint each epoch, TensorBoard and a progress bar. ``task.py`` has the models
and the data, and measures: samples per second after ten steps, the peak of resident memory. Each program is
a separate process, one after another, round by round; medians are shown. What they reach is compared, so
that it is the same work. Lines are those of a program that are neither empty nor a comment.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_suffix("")
TRAINERS = ("paceline", "lightning", "transformers")
TASKS = {"gpt": 2e-3, "vit": 1e-2, "gan": 1e-3}
"""By task, how far apart what the programs reach may be."""


def run(program: Path) -> dict[str, float]:
    """What a program reports of itself."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=folder,
            capture_output=True,
            text=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        )
    if done.returncode:
        raise SystemExit(f"{program.name}:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.rpartition("FOUND ")[2].splitlines()[0])
    return found | {"samples_per_second": found["samples"] / found["seconds"]}


def lines_of(program: Path) -> int:
    stripped = [line.strip() for line in program.read_text().splitlines()]
    return len([line for line in stripped if line and not line.startswith("#")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for task, tolerance in TASKS.items():
        programs = {name: PROGRAMS / f"{task}_{name}.py" for name in TRAINERS}
        programs = {name: path for name, path in programs.items() if path.exists()}
        rounds = [{name: run(path) for name, path in programs.items()} for _ in range(options.rounds)]
        results[task] = {}
        for name, path in programs.items():
            medians = {key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]}
            results[task][name] = medians | {"lines": lines_of(path)}
            one = results[task][name]
            measured = f"{one['samples_per_second']:.0f} samples/s, {one['peak_mib']:.0f} MiB"
            print(f"{task} {name}: {measured}, {one['lines']} lines, reached {one['reached']:.5f}")
        reached = [one["reached"] for one in results[task].values()]
        if not math.isclose(min(reached), max(reached), rel_tol=0, abs_tol=tolerance):
            raise SystemExit(f"{task}: not the same work: {reached}")
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
