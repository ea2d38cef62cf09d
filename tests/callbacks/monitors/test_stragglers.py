"""Stragglers: which rank holds the others up, and what it costs to know."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from torch import nn

from paceline import PacelineError
from paceline.callbacks import Stragglers

JOB = Path(__file__).with_name("watch_job.py")
job = load_job(JOB)
SECONDS = 120
NAMES = {
    "step_seconds_max",
    "step_seconds_median",
    "data_seconds_max",
    "data_seconds_median",
    "slowest_rank",
}


@pytest.fixture(scope="session")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stragglers")
    cases = [f"stragglers/{name}" for name in job.STRAGGLERS]
    run_ranks(JOB, 2, folder, *cases, folder=folder, seconds=SECONDS)
    return lambda name, rank=0: json.loads((folder / f"{name}.{rank}.json").read_text())


def lines_of(found: dict) -> list[str]:
    return [line for line in found["log"] if "is a straggler" in line]


# -- on two ranks ------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["data", "compute"])
def test_the_slow_rank_is_named_once(seen, name, rank):
    found = seen(name, rank)
    (line,) = lines_of(found)
    assert "rank 1 is a straggler" in line
    assert len(found["published"]) == 3
    for values in found["published"]:
        assert values["perf/slowest_rank"] == 1
        assert values["perf/step_seconds_max"] == pytest.approx(0.04 + job.LEAST)


def test_steps_as_a_whole_show_nothing(seen):
    for name in ("data", "compute"):
        fast, slow = (seen(name, rank)["whole step"] for rank in (0, 1))
        assert fast == pytest.approx(slow)
        assert fast == pytest.approx(0.04 + job.LEAST)


def test_what_it_waits_for_is_reported(seen):
    for values in seen("data")["published"]:
        assert values["perf/data_seconds_max"] == pytest.approx(0.04)
    for values in seen("compute")["published"]:
        assert values["perf/data_seconds_max"] == 0


def test_ranks_that_are_even_are_no_news(seen):
    for rank in (0, 1):
        found = seen("even", rank)
        assert not lines_of(found)
        assert len(found["published"]) == 2
        seconds = [values["perf/step_seconds_median"] for values in found["published"]]
        assert seconds == pytest.approx([0.03 + job.LEAST] * 2)


def test_values_are_the_same_on_every_rank_and_are_written_by_rank_zero(seen):
    found = seen("data")
    assert found["published"] == seen("data", 1)["published"]
    rows = [row for row in found["rows"] if "perf/slowest_rank" in row]
    assert [row["step"] for row in rows] == [7, 14, 21]
    assert {name.removeprefix("perf/") for name in rows[0] if name.startswith("perf/")} == NAMES


@pytest.mark.parametrize("name", ["data", "failing"])
@pytest.mark.parametrize("rank", [0, 1])
def test_gradients_are_watched_in_the_last_steps_of_a_window_only(seen, name, rank):
    found = seen(name, rank)
    watched = [step % job.EVERY >= 2 for step in range(len(found["hooked"]))]
    assert found["hooked"] == [found["parameters"] * one for one in watched]
    assert found["hooked after"] == 0


def test_after_an_error_in_a_window_nothing_is_watched(seen):
    found = seen("failing")
    assert "this is enough" in found["error"]
    assert found["hooked"][-1] > 0
    assert found["hooked after"] == 0


def test_under_a_strategy_that_shards_waiting_for_data_is_seen(seen):
    for values in seen("fsdp")["published"]:
        assert values["perf/data_seconds_max"] == pytest.approx(0.04)
    assert seen("fsdp")["hooked after"] == 0


# -- without ranks -----------------------------------------------------------------------------


class Ranks:
    """A trainer that gets the ranks' seconds a step, report by report."""

    def __init__(self, *reports, world=2):
        self.reports, self.world_size = list(reports), world
        self.module, self.global_step = nn.Linear(1, 1), 0
        self.counters = SimpleNamespace(samples_in_epoch=1)
        self.strategy = SimpleNamespace(device=torch.device("cpu"))
        self.ranks = SimpleNamespace(all_gather=self.all_gather)
        self.said, self.metrics = [], {}

    def all_gather(self, mine):
        return self.reports.pop(0)

    def log_line(self, text):
        self.said.append(text)

    def publish(self, values):
        self.metrics.update(values)

    def run(self, every=2, steps=None):
        watch = Stragglers(every)
        watch.on_fit_start(self)
        for _ in range(steps or every * len(self.reports)):
            watch.on_step_start(self, [])
            self.global_step += 1
            watch.on_step_end(self, [])
            watch.on_step_boundary(self)
        watch.on_teardown(self, "fit")
        return self.said


SLOW_1, SLOW_0 = [(0.0, 0.01), (0.02, 0.03)], [(0.01, 0.05), (0.0, 0.01)]
EVEN = [(0.0, 0.010), (0.0, 0.011)]


def test_what_is_said():
    (line,) = Ranks([(0.001, 0.01), (0.001, 0.02), (0.05, 0.062), (0.002, 0.03)]).run()
    assert line == (
        "rank 2 is a straggler: its own work takes 62.0 ms per step, 50.0 ms of that waiting for data; "
        "the median of the others is 20.0 ms, 1.0 ms of that waiting for data"
    )


def test_what_is_published():
    ranks = Ranks([(0.001, 0.01), (0.003, 0.02), (0.05, 0.06)])
    ranks.run()
    assert ranks.metrics == {
        "perf/step_seconds_max": 0.06,
        "perf/step_seconds_median": 0.02,
        "perf/data_seconds_max": 0.05,
        "perf/data_seconds_median": 0.003,
        "perf/slowest_rank": 2.0,
    }


def test_the_same_rank_is_named_again_after_ten_reports():
    assert len(Ranks(*[SLOW_1] * 10).run()) == 1
    assert len(Ranks(*[SLOW_1] * 11).run()) == 2
    assert len(Ranks(SLOW_1, *[EVEN] * 3, SLOW_1).run()) == 1


def test_another_rank_is_named_at_once():
    said = Ranks(SLOW_1, SLOW_0, SLOW_0, SLOW_1).run()
    assert [line[:6] for line in said] == ["rank 1", "rank 0", "rank 1"]


@pytest.mark.parametrize("seconds", [0.0149, 0.0151])
def test_half_as_long_again_is_slow(seconds):
    assert bool(Ranks([(0.0, 0.01), (0.0, seconds)]).run()) == (seconds > 0.015)


def test_less_than_a_millisecond_is_nothing():
    assert not Ranks([(0.0, 0.0001), (0.0, 0.001)]).run()
    assert Ranks([(0.0, 0.0001), (0.0, 0.0012)]).run()


def test_a_second_run_starts_again():
    ranks = Ranks(SLOW_1)
    watch = Stragglers(1)
    for _ in range(2):
        ranks.reports, ranks.global_step = [SLOW_1], 0
        watch.on_fit_start(ranks)
        for step in range(2):
            watch.on_step_start(ranks, [])
            ranks.global_step += 1
            if step:
                ranks.module.weight.grad = None
            watch.on_step_end(ranks, [])
            watch.on_step_boundary(ranks)
        watch.on_teardown(ranks, "fit")
    assert len(ranks.said) == 2


def test_alone_it_does_nothing():
    ranks = Ranks(world=1)
    assert not ranks.run(every=1, steps=5)
    assert not ranks.metrics
    found = job.observe(job.Case(job.watched, "single", steps=16), Path.cwd(), devices=1)
    assert not found["published"]
    assert not any(found["hooked"])


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "1ep", "30s", "often", None])
def test_every_counts_steps(every):
    with pytest.raises(PacelineError, match=r"Stragglers: 1 invalid argument\n  every: "):
        Stragglers(every)


def test_every_may_be_written_as_everywhere():
    assert Stragglers("20st").every == Stragglers(20).every == 20
