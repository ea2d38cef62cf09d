"""Accumulation that changes over the epochs: the steps, their numbers, and runs that are resumed."""

import json
from pathlib import Path

import pytest
import torch
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from helpers.stops import StopsAt
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, GradientAccumulationScheduler

JOB = Path(__file__).with_name("accumulation_job.py")
X = torch.linspace(-1, 1, 24).reshape(24, 1)
SCHEDULE = {0: 1, 1: 2, 3: 4}  # steps by epoch, of 6 batches: 6, 3, 3, 2, 2


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen = nn.Linear(1, 1), []

    def training_step(self, batch):
        self.seen.append((self.epoch, self.global_step, batch[0].flatten().tolist()))
        return (self.net(batch[0]) - batch[0] ** 2).square().mean()

    def validation_step(self, batch):
        self.validated = [*getattr(self, "validated", []), self.global_step]

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        rate = OneCycleLR(optimizer, 0.1, total_steps=self.trainer.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((x,) for x in X)

    def __len__(self):
        return 24


def loader(kind="map", size=4):
    return DataLoader(Stream() if kind == "stream" else TensorDataset(X), size, shuffle=kind == "shuffled")


def fit(module, *callbacks, data=None, val=None, schedule=SCHEDULE, resume=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 5}
    callbacks = [*callbacks, *([GradientAccumulationScheduler(schedule)] if schedule else [])]
    trainer = Trainer(callbacks=callbacks, **(usual | settings))
    trainer.fit(module, data or loader(), val, resume=resume)
    return trainer


def by_hand(schedule=SCHEDULE, epochs=5, size=4):
    module = Net()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    factors = [max((f, n) for f, n in schedule.items() if f <= e)[1] for e in range(epochs)]
    rate = OneCycleLR(optimizer, 0.1, total_steps=sum(-(-(24 // size) // n) for n in factors))
    for factor in factors:
        for step in X.split(size * factor):
            for part in step.split(size):
                loss = (module.net(part) - part**2).square().mean()
                (loss * (part.numel() / step.numel())).backward()
            optimizer.step()
            optimizer.zero_grad()
            rate.step()
    return module.net


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_each_epoch_has_its_own_micro_batches_and_the_numbers_of_a_plain_loop(kind):
    module, expected = Net(), by_hand()
    trainer = fit(module, data=loader(kind))
    per_epoch = [len({step for e, step, _ in module.seen if e == epoch}) for epoch in range(5)]
    assert per_epoch == [6, 3, 3, 2, 2]
    assert (trainer.global_step, trainer.total_steps) == (16, 16)
    assert trainer.counters.samples == 5 * 24
    torch.testing.assert_close(module.net.weight, expected.weight, rtol=1e-6, atol=0)


def test_the_samples_of_an_epoch_are_those_of_any_other_accumulation():
    scheduled, plain = Net(), Net()
    fit(scheduled, data=loader("shuffled"))
    fit(plain, data=loader("shuffled"), schedule=None)
    assert [(e, x) for e, _, x in scheduled.seen] == [(e, x) for e, _, x in plain.seen]


def test_the_length_of_an_epoch_is_its_own():
    class Lengths(Callback):
        def __init__(self):
            self.found = []

        def on_train_epoch_start(self, trainer):
            self.found.append(trainer.steps_per_epoch)

    lengths, module = Lengths(), Net()
    fit(module, lengths, val=loader(), validate_every="0.5ep", sanity_val_batches=0)
    assert lengths.found == [6, 3, 3, 2, 2]
    assert sorted(set(module.validated)) == [3, 6, 8, 9, 11, 12, 13, 14, 15, 16]


RESUMED = [(stop, kind) for stop in (6, 8, 12, 13) for kind in ("shuffled", "stream")]
USUAL = [(6, "shuffled"), (8, "stream"), (12, "stream"), (13, "shuffled")]


@pytest.mark.parametrize(("stop", "kind"), soaked(RESUMED, USUAL))
def test_a_resumed_run_continues_with_the_accumulation_of_its_epoch(tmp_path, kind, stop):
    whole, first, second = Net(), Net(), Net()
    fit(whole, data=loader(kind))
    kept = {"run_dir": tmp_path, "name": "n"}

    fit(first, StopsAt(stop), Checkpoint(), data=loader(kind), **kept)
    trainer = fit(second, Checkpoint(), data=loader(kind), resume="latest", **kept)
    assert first.seen + second.seen == whole.seen
    assert torch.equal(second.net.weight, whole.net.weight)
    assert trainer.total_steps == 16


def test_before_the_first_epoch_that_is_named_it_is_one():
    assert [GradientAccumulationScheduler({2: 3, 4: 8}).at(epoch) for epoch in range(6)] == [
        1,
        1,
        3,
        3,
        8,
        8,
    ]


def test_the_change_is_reported(capsys):
    fit(Net())
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert lines == ["epoch 2: 2 micro-batches in a step", "epoch 4: 4 micro-batches in a step"]


@pytest.mark.parametrize("scheduling", [{}, {0: 0}, {-1: 2}, {0: True}, {"0": 2}, [1, 2], 4])
def test_what_is_no_schedule_is_refused(scheduling):
    with pytest.raises(PacelineError, match="takes micro-batches by epoch"):
        GradientAccumulationScheduler(scheduling)


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"global_batch_size": 8}])
def test_it_is_the_only_one_that_says_how_many(settings):
    with pytest.raises(PacelineError, match="GradientAccumulationScheduler gives it"):
        fit(Net(), **settings)


def test_manual_optimization_takes_none():
    class Manual(Net):
        automatic_optimization = False

    with pytest.raises(PacelineError, match="not possible with manual optimization"):
        fit(Manual(), schedule={0: 2})


# -- on ranks ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    outcome = run_ranks(JOB, 2, folder, folder=folder)
    assert outcome.codes == [0, 0], outcome.output
    return folder


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "deepspeed_stage_2"])
def test_two_ranks_have_the_steps_of_one_with_twice_the_micro_batches(ranks, strategy):
    expected = by_hand({0: 2, 1: 4, 3: 8}, size=2)
    for rank in (0, 1):
        found = json.loads((ranks / f"{strategy}-{rank}.json").read_text())
        assert found["steps"] == 16
        assert found["weight"] == pytest.approx(expected.weight.item(), rel=1e-5)


def test_a_run_of_two_ranks_resumes_on_one_with_the_same_steps(ranks):
    module, expected = Net(), by_hand({0: 2, 1: 4, 3: 8}, size=2)
    saved = ranks / "runs" / "saved" / "1" / "checkpoints" / "step-00000008"
    trainer = fit(module, data=loader(size=2), resume=saved)
    assert trainer.global_step == 16
    sizes = [sum(len(x) for _, step, x in module.seen if step == at) for at in range(8, 16)]
    assert sizes == [8, 8, 8, 8, 16, 8, 16, 8]
    torch.testing.assert_close(module.net.weight, expected.weight, rtol=1e-5, atol=0)
