"""A module that was trained under one strategy is taken by another, or refused with the way out."""

from pathlib import Path

import pytest
from helpers.ranks import run_ranks

JOB = Path(__file__).with_name("mixed_job.py")
REFUSED = "Line is still sharded by the strategy of an earlier run"


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        ("single,ddp,deepspeed_stage_2,single,fsdp,fsdp,single", ["trained"] * 6 + [REFUSED]),
        ("deepspeed_stage_3,deepspeed_stage_3,deepspeed_stage_2,ddp", ["trained"] * 4),
        ("deepspeed_stage_3,fsdp", ["trained", REFUSED]),
        ("fsdp,deepspeed_stage_2", ["trained", REFUSED]),
    ],
)
def test_one_strategy_after_another(strategies, expected, tmp_path):
    done = run_ranks(JOB, 1, strategies, folder=tmp_path, check=False, seconds=120)
    mark = "result: "
    results = [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]
    assert results == expected, done.output
