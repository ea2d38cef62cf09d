"""LossSpikes: steps that are skipped or rolled back, against a plain loop, on any strategy."""

from pathlib import Path

import pytest
import torch
from helpers.averages import assert_same, in_checkpoint, parameters
from helpers.pairwise import soaked
from helpers.ranks import run_strategies
from helpers.spikes import PLANTED, Net, by_hand, fit
from helpers.stops import StopsAt

from paceline import PacelineError
from paceline.callbacks import EMA, Checkpoint, LossSpikes

JOB = Path(__file__).with_name("spikes_job.py")


def test_updates_at_spikes_are_skipped_and_schedules_with_them(capsys):
    module, spikes = Net(), LossSpikes(4.0, 5)
    trainer = fit(module, spikes)
    assert spikes.count == len(PLANTED)
    assert_same(parameters(module), by_hand(skipped=PLANTED))
    assert trainer.lr_schedulers[0].last_epoch == trainer.global_step - len(PLANTED)
    out = capsys.readouterr().out
    for number, step in enumerate(PLANTED, 1):
        assert f"step {step}: the loss" in out
        assert f"the update is skipped (spike {number} of at most 10)" in out


def test_before_the_window_is_full_nothing_is_judged():
    module, spikes = Net(), LossSpikes(4.0, PLANTED[0])
    fit(module, spikes)
    assert spikes.count < len(PLANTED)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loss_is_of_all_micro_batches(accumulate):
    module, spikes = Net(), LossSpikes(4.0, 5)
    fit(module, spikes, size=4 // accumulate, accumulate=accumulate)
    assert_same(parameters(module), by_hand(skipped=PLANTED), 1e-5)


def test_rolling_back_takes_weights_and_moments_and_skips_the_batches_since(tmp_path, capsys):
    module, spikes = Net(), LossSpikes(4.0, 5, action="roll_back")
    trainer = fit(module, spikes, Checkpoint("4st", keep=None), EMA(0.5), run_dir=tmp_path)
    weights, average = by_hand(skipped=PLANTED, rolled_back_to=[8, 12], average=0.5)
    assert_same(in_checkpoint(trainer.run.latest), average, 1e-5)
    assert_same(parameters(Net.load_from_checkpoint(trainer.run.latest)), average, 1e-5)
    out = capsys.readouterr().out
    assert "rolled back to the weights of step-00000008; steps and data continue" in out
    fresh = Net()
    fit(fresh, LossSpikes(4.0, 5, action="roll_back"), Checkpoint("4st", keep=None), run_dir=tmp_path / "b")
    assert_same(parameters(fresh), weights, 1e-5)


def test_without_a_checkpoint_there_is_nothing_to_roll_back_to(capsys):
    module = Net()
    fit(module, LossSpikes(4.0, 5, action="roll_back"))
    assert "there is no checkpoint to roll back to yet" in capsys.readouterr().out
    assert_same(parameters(module), by_hand(skipped=PLANTED))


RESUMED = [(stop, action) for stop in (6, 10, 13) for action in ("skip", "roll_back")]


@pytest.mark.parametrize(
    ("stop", "action"), soaked(RESUMED, [(6, "skip"), (10, "roll_back"), (13, "roll_back")])
)
def test_a_resumed_run_ends_the_same_to_the_bit(tmp_path, stop, action):
    whole, second = Net(), Net()

    def run(module, folder, *more, **settings):
        spikes = LossSpikes(4.0, 5, action=action)
        fit(module, spikes, Checkpoint("2st", keep=None), *more, run_dir=tmp_path / folder, **settings)
        return spikes

    run(whole, "whole")
    run(Net(), "cut", StopsAt(stop))
    assert run(second, "cut", resume="latest").count == len(PLANTED)
    assert_same(parameters(second), parameters(whole), 0)


def test_a_checkpoint_that_a_stop_wrote_is_not_the_one_to_roll_back_to(tmp_path):
    whole, second = Net(), Net()
    spikes = {"action": "roll_back"}
    fit(whole, LossSpikes(4.0, 5, **spikes), Checkpoint("4st", keep=None), run_dir=tmp_path / "whole")
    fit(Net(), LossSpikes(4.0, 5, **spikes), Checkpoint("4st", keep=None), StopsAt(9), run_dir=tmp_path)
    again = [LossSpikes(4.0, 5, **spikes), Checkpoint("4st", keep=None)]
    fit(second, *again, resume="latest", run_dir=tmp_path)
    assert_same(parameters(second), parameters(whole), 0)


def test_a_branch_rolls_back_to_the_checkpoint_that_it_came_from(tmp_path):
    whole, branch = Net(), Net()
    often = [Checkpoint("4st", keep=None)]
    fit(whole, LossSpikes(4.0, 5, action="roll_back"), *often, run_dir=tmp_path)
    source = tmp_path / "n" / "1" / "checkpoints" / "step-00000008"
    fit(branch, LossSpikes(4.0, 5, action="roll_back"), *often, run_dir=tmp_path / "b", resume=source)
    assert_same(parameters(branch), parameters(whole), 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_losses_that_are_not_finite_are_left_to_the_argument_for_them(value):
    class Bad(Net):
        def training_step(self, batch):
            loss = super().training_step(batch)
            return loss * value if self.global_step == 2 else loss

    spikes = LossSpikes(4.0, 5)
    fit(Bad(), spikes, nonfinite="skip")
    assert spikes.count == len(PLANTED)
    fit(Bad(), LossSpikes(4.0, 5), nonfinite="ignore")


def test_one_too_many_is_an_error():
    with pytest.raises(PacelineError, match="after 1 others, the most allowed"):
        fit(Net(), LossSpikes(4.0, 5, most=1))


def test_fp16_on_a_scale_skips_too():
    module, spikes = Net(), LossSpikes(4.0, 5)
    fit(module, spikes, precision="fp16", nonfinite="skip")
    assert spikes.count == len(PLANTED)


def test_manual_optimization_takes_none():
    class Manual(Net):
        automatic_optimization = False

    with pytest.raises(PacelineError, match="this module updates by itself"):
        fit(Manual(), LossSpikes())


def test_wrong_arguments_are_reported_together():
    with pytest.raises(PacelineError) as error:
        LossSpikes(0, 0, action="rollback", most=0)
    assert all(name in str(error.value) for name in ("threshold", "window", "'roll_back'?", "most"))


STRATEGIES = ["fsdp", "deepspeed_stage_0", "deepspeed_stage_3", "ddp", "deepspeed_stage_2"]
USUAL = STRATEGIES[:3]


@pytest.fixture(scope="module")
def ranks(request):
    return run_strategies(request, JOB, STRATEGIES, USUAL)


@pytest.mark.launch  # for its length
@pytest.mark.parametrize("strategy", soaked(STRATEGIES, USUAL))
def test_ranks_do_what_one_device_does(ranks, strategy):
    found = torch.load(ranks / f"{strategy}.pt")
    assert_same(found["skip"], by_hand(skipped=PLANTED), 1e-5)
    weights, _ = by_hand(skipped=PLANTED, rolled_back_to=[8, 12], average=0.5)
    assert_same(found["roll_back"], weights, 1e-5)
