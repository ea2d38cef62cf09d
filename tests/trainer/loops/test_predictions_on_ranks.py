"""Predictions on ranks are one device's, in the data's order, in memory and in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.ranks import run_ranks

JOB = Path(__file__).with_name("predictions_job.py")
STRATEGIES = ["ddp", "fsdp", "deepspeed_stage_2", "deepspeed_stage_3"]
RANKS = 3


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folders = {}
    for devices, strategies in ((1, ["single"]), (RANKS, STRATEGIES)):
        folders[devices] = place = tmp_path_factory.mktemp(f"world{devices}")
        run_ranks(JOB, devices, devices, place, *strategies, folder=place)

    def of(strategy: str) -> list[dict]:
        devices = 1 if strategy == "single" else RANKS
        files = [folders[devices] / f"{strategy}-{rank}.json" for rank in range(devices)]
        return [json.loads(path.read_text()) for path in files]

    of.folder = folders[RANKS]
    return of


def samples(outputs: list, column: int) -> list:
    return [one for output in outputs for one in output[column]]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("way", ["gathered", "written", "read"])
def test_every_rank_has_all_predictions_in_the_datas_order(job, strategy, way):
    (alone,) = job("single")
    for rank in job(strategy):
        assert samples(rank[way], 0) == list(range(103))
        assert samples(rank[way], 1) == [f"n{i}" for i in range(103)]
        for ours, expected in zip(samples(rank[way], 2), samples(alone["gathered"], 2), strict=True):
            assert ours == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_without_a_sample_write_none(job, strategy):
    assert all(samples(rank["one"], 0) == [0] for rank in job(strategy))


def test_each_rank_writes_its_own_parts_and_no_rank_the_whole(job):
    parts = [path.name.split("-")[1] for path in (job.folder / "ddp-out").glob("part-*")]
    assert all(parts.count(f"{rank:05d}") > 2 for rank in range(RANKS))
    assert not list(job.folder.glob(".staging*"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rank_zero_alone_may_keep_them(job, strategy):
    assert [rank["only_zero"] for rank in job(strategy)] == [len(job(strategy)[0]["gathered"]), 0, 0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_there_is_not_written_over_and_every_rank_reports_it(job, strategy):
    assert all("never overwritten" in rank["over"] for rank in job(strategy))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_object_that_some_ranks_did_not_log_is_named_on_all(job, strategy):
    for rank in job(strategy):
        assert "'val/partly'" in rank["partly"]
        assert "not on rank 1" in rank["partly"]
