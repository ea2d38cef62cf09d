"""A batch size that changes over the epochs: the steps, their numbers, and runs that are resumed."""

import json
from pathlib import Path

import pytest
import torch
from helpers.averages import Net, X, assert_same, fit, parameters
from helpers.pairwise import soaked
from helpers.ranks import run_strategies
from helpers.stops import StopsAt

from paceline import PacelineError, Trainer
from paceline.callbacks import BatchSizeScheduler, Callback, Checkpoint, GradientAccumulationScheduler

JOB = Path(__file__).with_name("batch_size_job.py")
STRATEGIES = ["fsdp", "ddp", "deepspeed_stage_2"]
USUAL = STRATEGIES[:1]
SCHEDULE = {1: 12, 2: 24}  # of 24 samples, from batches of 4: 6, 2, 1 steps


def by_hand(sizes=(4, 12, 24)):
    module = Net()
    optimizer = module.configure_optimizers()
    for size in sizes:
        for x in X.split(size):
            module.loss((x,)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return parameters(module)


class Steps(Callback):
    def __init__(self):
        self.found, self.totals = [], set()

    def on_step_start(self, trainer, batches):
        self.found.append((trainer.epoch, len(batches)))
        self.totals.add((trainer.total_steps, trainer.steps_per_epoch))


def test_each_epoch_has_steps_of_its_size_and_the_numbers_of_a_plain_loop(capsys):
    module, steps = Net(), Steps()
    trainer = fit(module, BatchSizeScheduler(SCHEDULE), steps)
    assert steps.found == [(0, 1)] * 6 + [(1, 3)] * 2 + [(2, 6)]
    assert steps.totals == {(9, 6), (9, 2), (9, 1)}
    assert trainer.counters.samples == 72
    assert_same(parameters(module), by_hand(), 1e-5)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert lines == ["epoch 2: 12 samples in a step", "epoch 3: 24 samples in a step"]


def test_it_may_get_smaller_than_the_loader_s_batch():
    module, steps = Net(), Steps()
    fit(module, BatchSizeScheduler({0: 8, 1: 2}), steps, max_epochs=2)
    assert steps.found == [(0, 2)] * 3 + [(1, 1)] * 12
    assert_same(parameters(module), by_hand((8, 2)), 1e-5)


@pytest.mark.parametrize("stop", [3, 6, 7, 8])
def test_a_resumed_run_has_the_size_of_its_epoch(tmp_path, stop):
    whole, second = Net(), Net()
    fit(whole, BatchSizeScheduler(SCHEDULE))
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), BatchSizeScheduler(SCHEDULE), StopsAt(stop), Checkpoint(), **kept)
    trainer = fit(second, BatchSizeScheduler(SCHEDULE), Checkpoint(), resume="latest", **kept)
    assert trainer.global_step == 9
    assert_same(parameters(second), parameters(whole), 0)


def test_epochs_that_are_not_named_keep_their_size_in_a_run_that_is_resumed_twice(tmp_path):
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), BatchSizeScheduler(SCHEDULE), StopsAt(7), Checkpoint(), **kept)
    fit(Net(), BatchSizeScheduler(SCHEDULE), StopsAt(8), Checkpoint(), resume="latest", **kept)
    trainer = fit(Net(), BatchSizeScheduler(SCHEDULE), Checkpoint(), resume="latest", **kept)
    assert trainer.total_steps == 9


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"global_batch_size": 8}])
def test_it_is_the_only_one_that_says_how_many(settings):
    with pytest.raises(PacelineError, match="BatchSizeScheduler gives it"):
        fit(Net(), BatchSizeScheduler(SCHEDULE), **settings)
    both = [BatchSizeScheduler({0: 2}), GradientAccumulationScheduler({0: 2})]
    with pytest.raises(PacelineError, match="both give the size of a step"):
        Trainer(callbacks=both)


def test_manual_optimization_takes_none():
    class Manual(Net):
        automatic_optimization = False

    with pytest.raises(PacelineError, match="with manual optimization a step is one batch"):
        fit(Manual(), BatchSizeScheduler({0: 12}))


@pytest.mark.parametrize("scheduling", [{}, {0: 0}, [1]])
def test_what_is_no_schedule_is_refused(scheduling):
    with pytest.raises(PacelineError, match="takes samples in a step by epoch"):
        BatchSizeScheduler(scheduling)


@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_two_ranks_have_the_steps_and_numbers_of_one(strategy, ranks):
    for rank in (0, 1):
        found = json.loads((ranks / f"{strategy}-{rank}.json").read_text())
        assert found["steps"] == 9
        same = {name: torch.tensor(value) for name, value in found["weights"].items()}
        assert_same(same, by_hand(), 1e-5)


@pytest.fixture(scope="module")
def ranks(request):
    return run_strategies(request, JOB, STRATEGIES, USUAL)


def test_a_run_of_two_ranks_resumes_on_one_with_the_same_steps(ranks):
    module = Net()
    saved = ranks / "runs" / "saved" / "1" / "checkpoints" / "step-00000007"
    trainer = fit(module, BatchSizeScheduler(SCHEDULE), resume=saved)
    assert trainer.global_step == 9
    assert_same(parameters(module), by_hand(), 1e-5)
