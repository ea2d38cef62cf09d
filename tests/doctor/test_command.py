"""``paceline doctor`` and ``paceline env`` as a user starts them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.environment import clean_environment
from helpers.ranks import run_ranks

from paceline.doctor import table
from paceline.doctor.finding import Finding

FINDINGS = [
    Finding("clock", "ok", "no jump"),
    Finding("threads", "warning", "too many", "OMP_NUM_THREADS=1"),
    Finding("world", "ok", "2 ranks", strategy="ddp"),
    Finding("training step", "ok", "weights within 1e-08", strategy="ddp"),
    Finding("world", "ok", "2 ranks", strategy="fsdp"),
    Finding("training step", "FAILED", "rank 1: it broke", "mend it", "fsdp", ("the end:", "  broken")),
]


def test_the_table_has_a_row_per_check_a_column_per_strategy_and_the_cures_below():
    assert table.text(FINDINGS, "two ranks").splitlines() == [
        "two ranks",
        "",
        "the machine",
        "clock        ok       no jump",
        "threads      warning  too many",
        "",
        "on ranks       ddp  fsdp",
        "world          ok   ok      2 ranks",
        "training step  ok   FAILED  rank 1: it broke",
        "",
        "FAILED: training step (fsdp): rank 1: it broke",
        "  cure: mend it",
        "  the end:",
        "    broken",
        "",
        "warning: threads: too many",
        "  cure: OMP_NUM_THREADS=1",
        "",
        "6 checks: 1 FAILED, 1 warning",
    ]


def test_the_same_as_data():
    found = table.as_data(FINDINGS, ranks=2)
    assert (found["ok"], found["ranks"], len(found["findings"])) == (False, 2, 6)
    assert found["findings"][1] == {
        "check": "threads",
        "outcome": "warning",
        "found": "too many",
        "cure": "OMP_NUM_THREADS=1",
        "strategy": "",
        "details": (),
    }
    assert table.as_data(FINDINGS[:3])["ok"]
    assert table.worst([]) == "ok"


def paceline(*arguments, cwd, **options):
    return run_ranks("paceline", 1, *arguments, folder=cwd, seconds=120, check=False, **options)


def test_env(tmp_path):
    variables = {"HF_TOKEN": "hf_secret", "NCCL_DEBUG": "WARN"}
    done = paceline("env", "--json", cwd=tmp_path, environment=variables)
    assert done.codes == [0], done.stderr
    found = json.loads(done.stdout)
    assert found["variables"]["NCCL_DEBUG"] == "WARN"
    assert found["variables"]["HF_TOKEN"] == "***"
    text = paceline("env", cwd=tmp_path, environment=variables).stdout
    assert "hf_secret" not in text
    assert {*text.splitlines()} >= {"versions", "limits", "variables"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategy", "dpp"], "did you mean: ddp?"),
        (["train.py"], "there is no such script"),
    ],
)
def test_a_mistake_says_what_to_do(arguments, said, tmp_path):
    done = paceline("doctor", *arguments, cwd=tmp_path)
    assert done.codes == [1]
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_start_is_reported_as_json_with_exit_code_1(tmp_path):
    done = paceline("doctor", "--accelerator", "tpu", "--json", "--strategy", "ddp", cwd=tmp_path)
    assert done.codes == [1], done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] is False
    by_check = {one["check"]: one for one in found["findings"]}
    assert by_check["devices"]["outcome"] == "FAILED"
    assert by_check["collectives"]["outcome"] == "skipped"
    assert done.stderr == ""  # no bar where there is no terminal


def test_another_rank_of_a_launch_leaves_the_checks_to_the_first(tmp_path):
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    done = paceline("doctor", cwd=tmp_path, environment=place | {"MASTER_ADDR": "127.0.0.1"})
    assert (done.codes, done.stdout) == ([0], "")
    assert "this is another one" in done.stderr


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_rank_outlives_the_command(number, code, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "doctor", "--strategy", "ddp", "--devices", "2"],
        cwd=tmp_path,
        env=clean_environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (ranks := _ranks_in(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "Traceback" not in output
    assert len(ranks) > 0
    psutil.wait_procs(ranks, timeout=60)
    assert not _ranks_in(tmp_path)


def _ranks_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        here = (process.info["cwd"] or "").startswith(str(folder))
        if "do_all" in command and here and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
