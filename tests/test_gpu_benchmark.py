"""What ``benchmarks/gpu/run.sh`` does, on a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.jobs import load_job

GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"
benchmark = load_job(GPU / "run.py")


def table(*arguments: str, folder: Path) -> dict:
    command = ["bash", str(GPU / "run.sh"), *arguments, "--json", str(folder / "rows.json")]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "rows.json").read_text())
    assert len(done.stdout.splitlines()) == len(found["rows"])
    return found


@pytest.mark.launch  # for its length
def test_each_part_starts_and_gives_its_row(tmp_path):
    for package in ("lightning", "accelerate", "transformers", "peft"):
        pytest.importorskip(package)
    found = table("--dry", folder=tmp_path)
    assert found["about"]["device"] == "cpu"
    assert list(found["rows"]) == [part.name for part in benchmark.parts()]
    for name, row in found["rows"].items():
        assert "failed" not in row, name
        if "tests" in row:
            assert "tests collected" in row["tests"]
        else:
            measured = row.get("tokens_per_second", row.get("seconds"))
            measured = measured["background"] if isinstance(measured, dict) else measured
            assert measured > 0, name
    assert found["rows"]["gpt, by hand"]["flops"] > 0


@pytest.mark.launch  # it starts interpreters
def test_what_fails_and_what_no_time_is_left_for_are_rows(tmp_path):
    broken = benchmark.Part("broken", ("language.py", "no such row"))
    assert "invalid choice" in benchmark.run(broken, 60)["failed"]
    found = table("--minutes", "0", "--only", "gpt2", folder=tmp_path)["rows"]
    assert found.keys() == {"gpt2", "gpt2, documents joined"}
    assert all(row == {"failed": "no time was left"} for row in found.values())
    slow = benchmark.Part("slow", ("language.py", "gpt2"))
    assert benchmark.run(slow, 0.1) == {"failed": "not done after 0 s"}


def test_rows_of_loops_are_compared_with_the_one_by_hand():
    by_hand = {"seconds": 2.0, "first_step": 1.0, "memory": 2**31, "samples": 8, "flops": 16.0}
    rows = {"gpt, by hand": by_hand, "gpt, paceline": {"seconds": 2.5, "first_step": 3.0, "memory": 2**30}}
    line = " ".join(benchmark.shown("gpt, paceline", rows["gpt, paceline"], rows).split())
    assert line == "gpt, paceline 3.2 samples/s 1.0 GiB first step 3.0 s 0.800 of by hand"
