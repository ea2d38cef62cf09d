"""Throughput, Timer, DeviceMonitor and Profiler together on two ranks, under each kind of strategy."""

import gzip
import json
from pathlib import Path

import pytest
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_strategies

JOB = Path(__file__).with_name("monitors_job.py")
job = load_job(JOB)
FLOPS = 2 * 3 * 16 * 2 + 2 * 16 * 1 * 3  # of a sample
STRATEGIES = ["fsdp", "deepspeed_stage_3", "ddp", "deepspeed_stage_2"]
USUAL = STRATEGIES[:2]


@pytest.fixture(scope="module")
def seen(request):
    folder = run_strategies(request, JOB, STRATEGIES, USUAL)
    return lambda name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", soaked(STRATEGIES, USUAL))
def test_what_is_published_is_the_same_on_every_rank(seen, name):
    first, second = (rank["metrics"] for rank in seen(name))
    assert first == second
    assert {n.partition("/")[0] for n in first} >= {"perf", "time", "host"}


@pytest.mark.parametrize("name", soaked(STRATEGIES, USUAL))
def test_samples_and_tokens_of_all_ranks_count_once(seen, name):
    found = seen(name)[0]["metrics"]
    steps, tokens = found["perf/steps_per_second"], found["perf/tokens_per_second"]
    measured = 2 * job.SAMPLES - 8  # all but the first two steps
    assert tokens / steps == pytest.approx(3 * measured / (job.STEPS - 2))
    on_a_device = found["perf/tflops_per_device"] * 1e12
    assert on_a_device / steps == pytest.approx(FLOPS * measured / (job.STEPS - 2) / 2)
    assert found["perf/mfu"] == pytest.approx(on_a_device / 1e9)
    assert 0 < found["perf/data_wait_share"] < 1


@pytest.mark.parametrize("name", soaked(STRATEGIES, USUAL))
def test_times_are_those_of_rank_zero(seen, name):
    zero = seen(name)[0]
    assert 0 < zero["timer"]["data"] < zero["timer"]["train"]
    for phase, seconds in zero["timer"].items():
        published = zero["metrics"][f"time/{phase}_seconds"]
        assert 0 < published <= seconds


@pytest.mark.parametrize("name", soaked(STRATEGIES, USUAL))
def test_each_rank_writes_its_trace_and_rank_zero_the_table(seen, name):
    folder = Path(seen(name)[0]["folder"])
    assert {path.name for path in (folder / "profile").iterdir()} == {
        f"rank{rank}-step00000006.json.gz" for rank in (0, 1)
    }
    for path in (folder / "profile").iterdir():
        names = {event["name"] for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
        assert {"aten::addmm", "aten::linear"} & names
    assert (folder / "log.txt").read_text().count("profile up to step 6, by self cpu time") == 1
    assert "profile up to" not in (folder / "log-rank-1.txt").read_text()
