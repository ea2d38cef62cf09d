"""``training_step`` may return None: such a step updates nothing, is counted, and is reported once."""

import json
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule, tools
from paceline.callbacks import Callback, Checkpoint

JOB = Path(__file__).with_name("steps_without_loss_job.py")
X = torch.linspace(-1, 1, 24).reshape(24, 1)


class SkipsSome(TrainModule):
    """Returns None for the batches whose first sample is in ``skipped``."""

    def __init__(self, skipped=(), rate=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.skipped, self.rate = nn.Linear(1, 1), skipped, rate

    def training_step(self, batch):
        if round((batch[0][0].item() + 1) * 11.5) in self.skipped:
            return None
        return (self.net(batch[0]) - batch[0]).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.rate)
        schedule = {"scheduler": StepLR(optimizer, 1, 0.9), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def fit(module, *callbacks, resume=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 2}
    trainer = Trainer(callbacks=callbacks, **(usual | settings))
    trainer.fit(module, DataLoader(TensorDataset(X), 4), resume=resume)
    return trainer


def by_hand(skipped, micro_batches=1, epochs=2, size=4):
    """The same training in a plain loop, which skips the steps with a micro-batch to be skipped."""
    module = SkipsSome()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    schedule = StepLR(optimizer, 1, 0.9)
    losses = []
    for _ in range(epochs):
        for start in range(0, 24, size * micro_batches):
            parts = X[start : start + size * micro_batches].split(size)
            if any(start + size * i in skipped for i in range(len(parts))):
                continue
            for part in parts:
                loss = (module.net(part) - part).square().mean()
                (loss * (1 / micro_batches)).backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return module, schedule, losses


@pytest.mark.parametrize("skipped", [(0,), (8, 20), ()])
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("nonfinite", ["raise", "ignore"])
def test_weights_and_schedule_are_those_of_a_loop_that_skips_the_step(skipped, micro_batches, nonfinite):
    module = SkipsSome(skipped)
    trainer = fit(module, accumulate=micro_batches, nonfinite=nonfinite)
    expected, schedule, _ = by_hand(skipped, micro_batches)
    assert torch.equal(module.net.weight, expected.net.weight)
    assert trainer.optimizers[0].param_groups[0]["lr"] == schedule.get_last_lr()[0]
    assert trainer.counters.skipped_steps == 2 * len(skipped)
    assert trainer.global_step == 12 // micro_batches  # they count as steps, and their samples as read
    assert trainer.counters.samples == 48
    assert all(p.grad is None for p in module.parameters())


def test_the_logged_loss_is_of_the_others():
    trainer = fit(SkipsSome((8,)), max_epochs=1)
    losses = by_hand((8,), epochs=1)[2]
    assert trainer.metrics["train/loss_epoch"] == pytest.approx(sum(losses) / 5)


def test_hooks_see_none_in_its_place():
    class Notes(Callback):
        def __init__(self):
            self.seen = []

        def on_step_end(self, trainer, outputs):
            self.seen.append([output is None for output in outputs])

    notes = Notes()
    fit(SkipsSome((4,)), notes, max_epochs=1, accumulate=2)
    assert notes.seen == [[False, True], [False, False], [False, False]]


def test_it_is_reported_once(capsys):
    fit(SkipsSome((4, 8, 12)))
    found = [line for line in capsys.readouterr().out.splitlines() if "None" in line]
    assert found == [
        "training_step returned None at step 2, epoch 1: such steps update nothing, and "
        "trainer.counters.skipped_steps counts them"
    ]


def test_a_resumed_run_counts_on(tmp_path):
    kept = {"run_dir": tmp_path, "name": "n"}
    whole = SkipsSome((4,))
    fit(whole)
    fit(SkipsSome((4,)), Checkpoint(), max_steps=3, **kept)
    module = SkipsSome((4,))
    trainer = fit(module, Checkpoint(), resume="latest", **kept)
    assert trainer.counters.skipped_steps == 2
    assert torch.equal(module.net.weight, whole.net.weight)


def test_an_epoch_without_any_loss_is_an_error():
    with pytest.raises(PacelineError, match="training_step returned None in each of the 6 steps"):
        fit(SkipsSome(range(24)))
    assert fit(SkipsSome(range(24)), max_steps=3).counters.skipped_steps == 3


def test_losses_with_weights_are_left_out_too():
    class Weighted(SkipsSome):
        def training_step(self, batch):
            loss = super().training_step(batch)
            return None if loss is None else {"loss": loss, "weight": torch.tensor(2.0)}

    for first_or_second in (8, 12):
        module = Weighted((first_or_second,))
        trainer = fit(module, accumulate=2)
        torch.testing.assert_close(module.net.weight, by_hand((first_or_second,), 2)[0].net.weight)
        assert trainer.counters.skipped_steps == 2


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_loss_that_is_not_finite_beside_it_is_left_out_and_blames_no_other_step(nonfinite):
    class Nan(SkipsSome):
        def training_step(self, batch):
            loss = super().training_step(batch)
            is_first = round((batch[0][0].item() + 1) * 11.5) == 8
            return None if loss is None else loss * (float("nan") if is_first else 1.0)

    module = Nan((12,))
    trainer = fit(module, accumulate=2, nonfinite=nonfinite)
    assert trainer.counters.skipped_steps == 2
    assert torch.equal(module.net.weight, by_hand((12,), 2)[0].net.weight)


def test_such_a_step_is_replayed_as_what_it_is(tmp_path):
    kept = {"run_dir": tmp_path, "name": "n"}
    trainer = fit(SkipsSome((8,)), Checkpoint(1, keep=None), max_epochs=1, **kept)
    data = DataLoader(TensorDataset(X), 4)
    found = tools.replay(trainer, SkipsSome((8,)), data, step=3)
    assert (found.losses, found.samples) == ([], [[8, 9, 10, 11]])
    assert "step 3 again: training_step returned None, and the step was skipped" in str(found)


def test_a_forgotten_return_is_still_an_error_at_step_1():
    class Forgets(SkipsSome):
        def training_step(self, batch):
            loss = (self.net(batch[0]) - batch[0]).square().mean()
            self.log("loss", loss)

            def unused():
                return loss

    with pytest.raises(PacelineError, match="training_step returned no loss") as found:
        fit(Forgets())
    assert "step 1, epoch 1" in str(found.value)


# -- on ranks ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    outcome = run_ranks(JOB, 2, folder, folder=folder)
    assert outcome.codes == [0, 0], outcome.output
    return lambda name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("kind", ["plain", "weighted", "accumulated"])
@pytest.mark.parametrize("strategy", ["ddp", "ddp_unused", "deepspeed_stage_0", "deepspeed_stage_2"])
def test_a_rank_without_a_loss_has_all_skip_the_step(ranks, strategy, kind):
    expected, _, _ = by_hand((10,), 4, size=2) if kind == "accumulated" else by_hand((12,), 2)
    for one in ranks(f"{strategy}-{kind}"):
        assert one["skipped"] == 2
        assert one["weight"] == pytest.approx(expected.net.weight.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fsdp", "strategy='fsdp'"),
        ("deepspeed_stage_3", "strategy='deepspeed_stage_3'"),
        ("ddp_ignore", "nonfinite='ignore'"),
        ("ddp_fp16", "precision='fp16'"),
        ("ddp_first", "in the first step"),
        ("ddp_batchnorm", "sync_batchnorm=True"),
    ],
)
def test_where_ranks_cannot_the_error_has_the_way_that_works(ranks, name, reason):
    for one in ranks(f"error-{name}"):
        assert reason in one["error"]
        assert 'return loss * float("nan")' in one["error"]
