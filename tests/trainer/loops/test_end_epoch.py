"""Epochs that end early: ``trainer.loop.end_epoch()``, and ``fast_dev_run``, which is one such epoch."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, EarlyStopping


class Net(TrainModule):
    """Notes what it is called with, and at which step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(1, 1)
        self.seen, self.validated, self.hooks = [], [], []

    def training_step(self, batch):
        self.seen.append((self.epoch, self.global_step, batch[0].flatten().tolist()))
        self.log("first", batch[0][0])
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch):
        self.validated.append(self.global_step)
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return optimizer, StepLR(optimizer, 1, 0.5)

    def on_train_epoch_end(self, trainer):
        self.hooks.append(f"epoch end {trainer.global_step}")

    def on_fit_end(self, trainer):
        self.hooks.append(f"fit end {trainer.global_step}")


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((torch.tensor([float(i)]),) for i in range(24))


DATA = TensorDataset(torch.arange(24.0).reshape(24, 1))


def loader(kind="map", **options):
    return DataLoader(Stream() if kind == "stream" else DATA, 4, **options)


def trainer_for(*callbacks, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None}
    return Trainer(callbacks=callbacks, **(usual | settings))


class EndsAfter(Callback):
    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, trainer, outputs):
        if trainer.global_step % self.steps == 0:
            trainer.loop.end_epoch()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_an_epoch_that_is_ended_is_ended_like_any_other(kind, workers):
    module = Net()
    trainer = trainer_for(EndsAfter(2), max_epochs=3)
    trainer.fit(module, loader(kind, num_workers=workers), loader())
    assert trainer.global_step == 6
    assert module.hooks == ["epoch end 2", "epoch end 4", "epoch end 6", "fit end 6"]
    assert sorted(set(module.validated)) == [0, 2, 4, 6]
    assert trainer.lr_schedulers[0].last_epoch == 3
    firsts = [samples for _, _, samples in module.seen]
    expected = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    if workers and kind == "stream":  # each worker reads the stream and keeps its own batches
        assert firsts[:2] == firsts[2:4] == firsts[4:]
    else:
        assert firsts == expected * 3
    assert trainer.metrics["train/first_epoch"] == pytest.approx(2.0)


def test_a_shuffled_epoch_that_follows_is_the_one_it_would_have_been():
    whole, cut = Net(), Net()
    trainer_for(max_epochs=2).fit(whole, loader(shuffle=True))
    trainer_for(EndsAfter(2), max_epochs=2).fit(cut, loader(shuffle=True))
    of = {epoch: [s for e, _, s in whole.seen if e == epoch] for epoch in (0, 1)}
    assert [s for _, _, s in cut.seen] == of[0][:2] + of[1][:2]


def test_a_run_resumes_after_an_epoch_that_was_ended(tmp_path):
    whole, first, second = Net(), Net(), Net()
    settings = {"run_dir": tmp_path, "name": "n"}
    trainer_for(EndsAfter(2), Checkpoint(), max_epochs=3).fit(whole, loader(shuffle=True))
    trainer_for(EndsAfter(2), Checkpoint(), max_epochs=1, **settings).fit(first, loader(shuffle=True))
    trainer = trainer_for(EndsAfter(2), Checkpoint(), max_epochs=3, **settings)
    trainer.fit(second, loader(shuffle=True), resume="latest")
    assert first.seen + second.seen == whole.seen
    assert torch.equal(second.net.weight, whole.net.weight)


# -- fast_dev_run --------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "steps"), [(True, 1), (1, 1), (3, 3), (99, 6)])
def test_fast_dev_run_is_an_epoch_of_so_many_steps(given, steps):
    module = Net()
    stopping = EarlyStopping("val/loss", patience=9)
    best = Checkpoint(monitor="val/loss")
    trainer = trainer_for(stopping, best, fast_dev_run=given, max_epochs=7, sanity_val_batches=0)
    trainer.fit(module, loader(), loader())
    assert trainer.global_step == steps
    assert trainer.epoch == 1
    assert trainer.total_steps == steps
    assert module.hooks == [f"epoch end {steps}", f"fit end {steps}"]
    assert {"train/first_epoch", "train/loss_epoch", "val/loss"} <= set(trainer.metrics)
    assert trainer.lr_schedulers[0].last_epoch == 1
    assert best.best_score == stopping.best == trainer.metrics["val/loss"]
    assert len([step for step in module.validated if step]) == min(int(given), 6)
    assert trainer.folder is None


def test_fast_dev_run_validates_at_its_end_however_rarely_the_run_would():
    module = Net()
    trainer_for(fast_dev_run=2, validate_every=1000).fit(module, loader(), loader())
    assert 2 in module.validated


def test_fast_dev_run_counts_steps_of_any_size():
    module = Net()
    trainer = trainer_for(fast_dev_run=2, global_batch_size=6)
    trainer.fit(module, loader())
    assert (trainer.global_step, trainer.counters.samples) == (2, 12)
    trainer = trainer_for(fast_dev_run=1, accumulate=3)
    trainer.fit(Net(), loader())
    assert (trainer.global_step, trainer.counters.samples) == (1, 12)


def test_fast_dev_run_0_is_an_ordinary_run():
    trainer = trainer_for(fast_dev_run=0, max_epochs=1)
    trainer.fit(Net(), loader())
    assert trainer.global_step == 6
