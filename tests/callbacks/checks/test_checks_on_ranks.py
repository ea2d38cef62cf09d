"""Ranks find together what one device finds, once, under strategies that spread weights in another way."""

import json
from pathlib import Path

import pytest
from helpers.pairwise import soaked
from helpers.ranks import run_strategies
from helpers.two_softmaxes import TwoSoftmaxes, loader

from paceline import Trainer
from paceline.callbacks import Checks

JOB = Path(__file__).with_name("checks_job.py")
STRATEGIES = ["ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_3"]
USUAL = STRATEGIES[:2]


@pytest.fixture(scope="module")
def ranks(request):
    return run_strategies(request, JOB, STRATEGIES, USUAL)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_find_what_one_device_finds_once(ranks, strategy):
    checks = Checks()
    trainer = Trainer(max_epochs=2, callbacks=checks, global_batch_size=10, progress=False, run_dir=None)
    trainer.fit(TwoSoftmaxes(), loader(1, shuffle=True), loader(1))
    alone = [[one.name, one.step] for one in checks.findings]
    assert ["softmax-twice", 3] in alone
    assert [json.loads((ranks / f"{strategy}-{rank}.json").read_text()) for rank in (0, 1)] == [
        alone,
        alone,
    ]
    folder = ranks / strategy / "1"
    for name, _ in alone:
        assert (folder / "log.txt").read_text().count(f"({name})") == 1
