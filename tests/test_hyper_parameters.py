"""The programs of docs/guides/hyper-parameters.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.environment import clean_environment
from helpers.pages import programs
from helpers.ranks import forked_python, run_ranks

import paceline

pytestmark = pytest.mark.launch  # for their length
PROGRAMS = programs(Path(paceline.__file__).parent / "docs/guides/hyper-parameters.md")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120"}


@pytest.fixture
def folder(tmp_path):
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    return tmp_path


def test_a_study_prunes_and_has_nothing_to_do_when_it_is_started_again(folder):
    pytest.importorskip("optuna")
    program, pruner = folder / "study.py", "    pruner="
    drawn = program.read_text()
    assert drawn.count(pruner) == 1
    seeded = f"    sampler=optuna.samplers.TPESampler(seed=1),\n{pruner}"  # one whose trials are pruned
    program.write_text(drawn.replace(pruner, seeded))
    first = run_ranks(program, 1, folder=folder)
    assert "pruned. val/loss at report" in first.stderr, first.output
    assert len(list((folder / "runs" / "sines").iterdir())) == 6
    again = run_ranks(program, 1, folder=folder)
    assert again.stdout == first.stdout.splitlines(keepends=True)[-1]


def test_a_trial_on_two_ranks(folder):
    pytest.importorskip("optuna")
    done = run_ranks(folder / "ranks.py", 2, folder=folder)
    ends = re.findall(r"Trial \d (finished|pruned)", done.stderr)
    assert len(ends) == 4, done.output
    assert done.stdout.count("2 devices (cpu), strategy ddp") == 4


@pytest.mark.soak  # Ray's start and its two workers are 20 CPU seconds
def test_asha_of_ray_tune_ends_the_worse_trial(folder):
    pytest.importorskip("ray.tune")
    python = forked_python()  # Ray's workers are forks, which import torch once
    options = f"num_cpus=1, include_dashboard=False, runtime_env={{'py_executable': {python!r}}}"
    program = folder / "asha.py"
    program.write_text(f"import ray\nray.init({options})\n{program.read_text()}")
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=folder,
        env=clean_environment() | QUIET,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = re.findall(r"^(\S+) (\d+) 0\.\d+$", done.stdout, re.MULTILINE)
    assert lines == [("0.03", "8"), ("1e-05", "2")], done.stdout[-3000:]
