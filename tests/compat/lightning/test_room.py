"""What the room for Lightning code does by itself: arguments kept, counters, checkpoints, values."""

import argparse
import copy
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import paceline.compat.lightning as L
from paceline.compat.lightning.pytorch.callbacks import BaseFinetuning, EarlyStopping, ModelCheckpoint

from .small import Net, data, trainer


def saved(*names, **options):
    class Saved(Net):
        def __init__(self, lr=0.1, width=2, part=None):
            super().__init__()
            self.save_hyperparameters(*names, **options)

    return Saved(lr=0.5)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (saved(), {"lr": 0.5, "width": 2, "part": None}),
        (saved(ignore="part"), {"lr": 0.5, "width": 2}),
        (saved(ignore=["part", "lr"]), {"width": 2}),
        (saved("lr"), {"lr": 0.5}),
        (saved({"depth": 3}), {"depth": 3}),
        (saved(argparse.Namespace(depth=3)), {"depth": 3}),
    ],
)
def test_hyperparameters(made, expected):
    assert dict(made.hparams) == expected
    name, value = next(iter(expected.items()))
    assert getattr(made.hparams, name) == made.hparams[name] == value
    assert dict(copy.deepcopy(made).hparams) == expected


def test_a_part_that_was_left_out_needs_not_be_given_again():
    made = saved(ignore=["part"])
    run = trainer()
    run.fit(made, data())
    loaded = type(made).load_from_checkpoint(run.checkpoint_callback.best_model_path)
    assert loaded.hparams.lr == 0.5
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), made.parameters(), strict=True))
    loaded = type(made).load_from_checkpoint(run.checkpoint_callback.best_model_path, lr=0.7)
    assert loaded.hparams.lr == 0.7


class TwoSteps(Net):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.layer(batch[0]).square().mean(), retain_graph=True)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD([part], lr=0.01) for part in self.parameters()]


def test_global_step_counts_the_updates_of_all_optimizers():
    run = trainer(max_epochs=2)
    run.fit(TwoSteps(), data())
    assert run.global_step == 12
    run = trainer(max_epochs=5, max_steps=8)
    run.fit(TwoSteps(), data())
    assert run.global_step == 8


class Ends(Net):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 1 else None


def test_a_batch_that_ends_the_epoch_is_no_step():
    run = trainer(max_epochs=3)
    run.fit(Ends(), data())
    assert (run.global_step, run.current_epoch) == (3, 3)
    run = trainer(max_epochs=9, max_steps=4)
    run.fit(Ends(), data())
    assert run.global_step == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3, 6]),
        ({"check_val_every_n_epoch": 2}, [6]),
        ({"val_check_interval": 2}, [2, 5]),
        ({"val_check_interval": 2, "check_val_every_n_epoch": None}, [2, 4, 6]),
        ({"val_check_interval": 0.34}, [1, 2, 3, 4, 5, 6]),
        ({"val_check_interval": 0.7}, [2, 5]),
    ],
)
def test_when_it_validates(options, expected):
    class Notes(L.Callback):
        def on_validation_end(self, trainer, pl_module):
            steps.append(trainer.global_step)

    steps = []
    trainer(max_epochs=2, callbacks=Notes(), num_sanity_val_steps=0, **options).fit(Net(), data(), data())
    assert steps == expected


class Names(Net):
    """Values without a phase in their names."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("acc", self.layer(batch[0]).mean())


@pytest.mark.parametrize(
    ("monitor", "mode"), [("loss", "min"), ("loss_epoch", "min"), ("acc", "max"), ("acc", "min")]
)
def test_what_is_watched_may_have_any_name(mode, monitor):
    stops = EarlyStopping(monitor, patience=1, min_delta=1e9, mode=mode)
    keeps = ModelCheckpoint(monitor=monitor, mode=mode)
    run = trainer(max_epochs=9, callbacks=[stops, keeps])
    run.fit(Names(), data(), data())
    assert run.current_epoch == 2
    assert stops.stopped_epoch == 1
    assert run.should_stop
    values = float(run.callback_metrics[monitor]), float(keeps.best_model_score)
    assert all(math.isfinite(value) for value in values)
    assert Path(keeps.best_model_path).name.startswith("epoch=")
    assert Path(keeps.best_model_path).is_file()


class Counts(L.Callback):
    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches += 1

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state_dict):
        self.batches = state_dict["batches"]


class Remembers(Net):
    seen = None

    def on_save_checkpoint(self, checkpoint):
        checkpoint["note"] = [checkpoint["epoch"], checkpoint["global_step"]]

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["note"]


def test_a_run_resumes_with_the_states_of_its_callbacks():
    whole, module = trainer(max_epochs=3), Remembers()
    whole.fit(module, data())
    trainer(max_epochs=2, default_root_dir="parts").fit(Remembers(), data())
    counts, resumed = Counts(), Remembers()
    first = trainer(max_epochs=1, callbacks=Counts(), default_root_dir="parts")
    first.fit(Remembers(), data())
    last = trainer(max_epochs=3, callbacks=counts, default_root_dir="parts")
    last.fit(resumed, data(), ckpt_path=first.checkpoint_callback.best_model_path)
    assert (counts.batches, resumed.seen) == (9, [0, 3])
    assert torch.equal(resumed.layer.weight, module.layer.weight)


class WithBackbone(Net):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def training_step(self, batch, batch_idx):
        return self.layer(self.backbone(batch[0])).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=0.01)


class Unfreezes(BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, train_bn=False)


@pytest.mark.parametrize("until", [{"max_epochs": -1, "max_steps": 4}, {"max_epochs": 2}])
def test_what_an_epoch_unfroze_is_trained_in_a_run_that_resumes(until):
    def fit(path=None, **options):
        module = WithBackbone()
        run = trainer(callbacks=[Unfreezes()], **options)
        run.fit(module, data(), ckpt_path=path)
        return run, module

    begun, part = fit(**until)
    begun.save_checkpoint("begun.ckpt")
    (_, whole), (_, resumed) = fit(max_epochs=3), fit("begun.ckpt", max_epochs=3)
    expected, found, before = (module.state_dict() for module in (whole, resumed, part))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    for name in ("layer.weight", "backbone.0.weight", "backbone.1.running_mean"):
        assert not torch.equal(before[name], expected[name]), name


class InSetup(Net):
    """Layers that exist from setup on, a parameter and a buffer of the module itself."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("count", torch.zeros(1))

    def setup(self, stage):
        if not hasattr(self, "more"):
            torch.manual_seed(1)
            self.more = nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        self.count = self.count + 1
        return (self.more(self.layer(batch[0])) * self.scale).square().mean()


def test_parts_that_come_later_are_trained_and_saved():
    module = InSetup()
    run = trainer()
    run.fit(module, data())
    assert module.count == 3
    assert module.scale != 1
    stored = load_file(next((run.ours.run.latest).glob("model*.safetensors")))
    assert {name.removeprefix("model.") for name in stored} == set(module.state_dict())
    assert stored["model.count"] == 3


class StaysInTrainMode(Net):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.modes = []

    def train(self, mode=True):
        super().train(mode)
        self.drop.eval()
        return self

    def training_step(self, batch, batch_idx):
        self.modes.append((self.training, self.drop.training))
        return super().training_step(batch, batch_idx)


def test_the_users_train_is_called():
    module = StaysInTrainMode().train()
    trainer(max_epochs=2).fit(module, data(), data())
    assert set(module.modes) == {(True, False)}


class Partly(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.other(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=0.01)


def test_parameters_in_no_optimizer_get_gradients_and_stay():
    module = Partly()
    before = module.other.weight.detach().clone()
    trainer().fit(module, data())
    assert torch.equal(module.other.weight, before)
    assert all(p.requires_grad and p.grad is not None for p in module.other.parameters())


def test_limits():
    run = trainer(max_epochs=-1, max_steps=4)
    run.fit(Net(), data())
    assert (run.global_step, run.current_epoch, run.max_epochs) == (4, 2, -1)
    assert trainer(max_epochs=None).max_epochs == 1000
    assert trainer(max_epochs=None, max_steps=5).max_epochs == -1
    stops = EarlyStopping("val_loss", patience=1, min_delta=1e9)
    run = trainer(max_epochs=9, min_epochs=4, callbacks=stops)
    run.fit(Net(), data(), data())
    assert run.current_epoch == 4
