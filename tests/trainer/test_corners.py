"""Corners that a review found: each of these went wrong once."""

import copy
import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.checkpoints import stored_state
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from paceline import DataModule, PacelineError, Run, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, EarlyStopping
from paceline.strategies import AutocastFP16
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify
from paceline.trainer.checkpoint.files.json_codec import decode, encode


class Net(TrainModule):
    def __init__(self, lr=0.05):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, 3)

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class StopAfter(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer):
        if trainer.global_step == self.step:
            trainer.stop("far enough")


def loader(batch=4, samples=20):
    return DataLoader(
        TensorDataset(torch.randn(samples, 3, generator=torch.Generator().manual_seed(1))), batch
    )


def fit(module, train=None, *, val=None, resume=None, datamodule=None, **arguments):
    settings = {
        "accelerator": "cpu",
        "max_epochs": 2,
        "progress": False,
        "loggers": ["-tensorboard", "-curves"],
    }
    settings |= {"run_dir": "runs", "name": "n"}
    trainer = Trainer(**(settings | arguments))
    run = trainer.fit(
        module, loader() if train is None else train, val, datamodule=datamodule, resume=resume
    )
    return trainer, run


def same(one, two):
    return all(torch.equal(v, two.state_dict()[k]) for k, v in one.state_dict().items())


def resumed_equals_whole(make, stop, train=None, **arguments):
    """Whether stopping after ``stop`` steps and resuming gives what a whole run gives."""
    make_train = train or loader
    whole, cut, again = make(), make(), make()
    callbacks = arguments.pop("callbacks", list)
    fit(whole, make_train(), run_dir="whole", callbacks=callbacks(), **arguments)
    fit(cut, make_train(), callbacks=[*callbacks(), StopAfter(stop)], **arguments)
    fit(again, make_train(), callbacks=callbacks(), resume="latest", **arguments)
    return same(whole, again)


def test_tied_weights_are_saved_and_resumed():
    class Tied(Net):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(3, 3)
            self.other.weight = self.net.weight

        def training_step(self, batch):
            return self.other(self.net(batch[0])).square().mean()

    assert resumed_equals_whole(Tied, 3)


@pytest.mark.parametrize("logs_dict", [True, False])
def test_a_metric_collection_is_resumed(logs_dict):
    torchmetrics = pytest.importorskip("torchmetrics")

    class Measured(Net):
        def __init__(self):
            super().__init__()
            self.scores = torchmetrics.MetricCollection(
                [torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()]
            )

        def training_step(self, batch, batch_idx):
            out = self.net(batch[0])
            self.scores.update(out, batch[0])
            if logs_dict:
                self.log_dict(self.scores)
            elif batch_idx == 0:  # what was logged before the stop still counts after it
                self.log("scores", self.scores)
            return out.square().mean()

    whole, _ = fit(Measured(), run_dir="whole")
    fit(Measured(), callbacks=[StopAfter(3)])
    again, _ = fit(Measured(), resume="latest")
    names = [n for n in whole.metrics if "Mean" in n]
    assert len(names) == 2
    assert {n: whole.metrics[n] for n in names} == {n: again.metrics[n] for n in names}


class Manual(Net):
    def __init__(self, every=1):
        super().__init__()
        self.automatic_optimization = False
        self.every = every

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.net(batch[0]).square().mean())
        if batch_idx % self.every == self.every - 1:
            self.optimizers().step()
            self.optimizers().zero_grad()


def test_manual_optimization_refuses_micro_batches():
    with pytest.raises(PacelineError, match="2 micro-batches"):
        fit(Manual(), global_batch_size=8)


@pytest.mark.parametrize("stop", [5, 6])
def test_manually_accumulated_gradients_are_resumed(stop):
    assert resumed_equals_whole(lambda: Manual(every=2), stop)


def test_two_optimizers_share_one_scale_in_a_step():
    class Pair(TrainModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = False
            self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)

        def training_step(self, batch):
            self.manual_backward(self.a(batch[0]).mean() + self.b(batch[0]).mean())
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.a, self.b)]

    half, full = Pair(), Pair()
    fit(half, precision=AutocastFP16(init_scale=8.0, growth_interval=1), max_epochs=1)
    fit(full, max_epochs=1)
    for one, two in zip(half.parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3)


def test_a_scaler_starts_again_with_each_fit():
    precision = AutocastFP16(init_scale=8.0, growth_interval=2)
    trainer = Trainer(
        accelerator="cpu", precision=precision, progress=False, checkpoint=False, loggers=False, run_dir="r"
    )
    scales = []
    for _ in range(3):
        trainer.fit(Net(), loader())
        scales.append(precision.loss_scale)
    assert len(set(scales)) == 1


def test_another_precision_reads_the_checkpoint():
    fit(Net(), callbacks=[StopAfter(3)])
    trainer, _ = fit(Net(), precision="fp16", resume="latest")
    assert trainer.global_step == 10


def test_gradients_a_module_brings_along_are_no_part_of_step_1():
    clean, used = Net(), Net()
    used.net(torch.ones(1, 3)).sum().backward()
    fit(clean, max_steps=1, run_dir="a")
    fit(used, max_steps=1, run_dir="b")
    assert same(clean, used)


class Weighted(Net):
    """A first micro-batch that counts nothing."""

    def training_step(self, batch, batch_idx):
        return {"loss": 1e6 * self.net(batch[0]).mean(), "weight": 0.0 if batch_idx == 0 else 1000.0}


def test_a_first_weight_of_zero_does_no_harm():
    module = Weighted()
    fit(module, accumulate=2, clip_grad_norm=0.1)
    assert all(torch.isfinite(p).all() for p in module.parameters())


def test_what_counts_nothing_makes_no_nan():
    class Padded(Net):
        def validation_step(self, batch, batch_idx):
            return {
                "loss": float("nan") if batch_idx == 0 else 2.0,
                "weight": 0.0 if batch_idx == 0 else 4.0,
            }

    trainer, _ = fit(Padded(), val=loader())
    assert trainer.metrics["val/loss"] == 2.0


class Uneven(IterableDataset):
    """Says 20, gives 24."""

    def __iter__(self):
        return iter(torch.randn(24, 3, generator=torch.Generator().manual_seed(2)).unsqueeze(1).unbind())

    def __len__(self):
        return 20


def test_parts_of_an_epoch_follow_the_real_one():
    seen = []

    class Watch(Net):
        def on_validation_end(self, trainer):
            if trainer.loop.is_fit_validation:
                seen.append((trainer.epoch, trainer.global_step))

    fit(Watch(), DataLoader(Uneven(), 2), val=loader(), validate_every="0.5ep")
    assert seen == [(0, 5), (0, 12), (1, 17), (1, 24)]


def test_a_streams_last_checkpoint_knows_that_the_epoch_ended():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.randn(20, 1, 3).unbind())

    trainer, run = fit(
        Net(),
        DataLoader(Stream(), 4),
        val=loader(),
        max_epochs=1,
        callbacks=[Checkpoint(5, monitor="val/loss")],
    )
    manifest = verify(run.latest)
    assert manifest["counters"]["epoch"] == trainer.epoch == 1
    assert manifest["metrics"]["val/loss"] == trainer.metrics["val/loss"]
    assert run.best == run.latest


class Plateau(Net):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss"}}


@pytest.mark.parametrize("stop", [2, 3, 4, 7])
def test_a_plateau_schedule_is_resumed(stop):
    whole, again = Plateau(), Plateau()
    arguments = {"val": loader(), "validate_every": 3, "max_epochs": 4}
    fit(whole, run_dir="whole", **arguments)
    fit(Plateau(), callbacks=[StopAfter(stop)], **arguments)
    fit(again, resume="latest", **arguments)
    assert same(whole, again)


def test_extra_state_comes_back():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    class Extra(Net):
        def __init__(self):
            super().__init__()
            self.counting = Counting()

        def training_step(self, batch):
            self.counting.count += 1
            return super().training_step(batch)

    _, run = fit(Extra())
    assert Extra.load_from_checkpoint(run.latest).counting.count == 10


def test_a_run_that_stopped_early_stays_stopped():
    arguments = {"val": loader(), "max_epochs": 20, "callbacks": [EarlyStopping("val/loss", min_delta=9)]}
    first, _ = fit(Net(), **arguments)
    again, _ = fit(Net(), resume="latest", **arguments)
    assert first.global_step == again.global_step == 20
    assert "early stopping" in again.stop_reason


def test_every_checkpoint_callback_judges_before_any_saves():
    class Scored(Net):
        def validation_step(self, batch):
            return torch.tensor([5.0, 1.0, 3.0][min(self.trainer.epoch, 2)])

    callbacks = [Checkpoint(), Checkpoint(monitor="val/loss", name="best")]
    _, run = fit(Scored(), val=loader(), callbacks=callbacks)
    state = stored_state(run.latest)["callbacks"]["best"]
    assert state["best_score"] == 1.0
    assert run.best == run.latest


def test_a_checkpoint_inside_validation_is_refused():
    class Eager(Net):
        def on_validation_end(self, trainer):
            if trainer.loop.is_fit_validation:
                trainer.save_checkpoint("mine")

    with pytest.raises(PacelineError, match="inside a validation"):
        fit(Eager(), val=loader())


def test_optimizer_state_keeps_its_dtype():
    class Wide(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    total = self.state[p].setdefault("total", torch.zeros_like(p, dtype=torch.float64))
                    total += p.grad.double()
                    p.data -= 0.01 * total.float()

    class Summed(Net):
        def configure_optimizers(self):
            return Wide(self.parameters(), lr=0.1)

    assert resumed_equals_whole(Summed, 3)


def test_a_counter_stays_one():
    back = decode(json.loads(json.dumps(encode({"milestones": Counter({3: 2, 5: 1})}))))
    assert back == {"milestones": Counter({3: 2, 5: 1})}
    assert type(back["milestones"]) is Counter


@pytest.mark.fault(16)
def test_a_newer_format_is_not_set_aside_as_damage(tmp_path):
    _, run = fit(Net())
    path = run.latest / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    manifest["format"] = 2
    path.write_bytes(files.sealed(manifest))
    with pytest.raises(files.NewerFormatError, match="format 2"):
        fit(Net(), resume="auto")
    assert path.exists()


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": null, "checksum": "x"}'])
def test_odd_manifests_are_damage_and_twice_is_no_trouble(content):
    for _ in range(2):
        _, run = fit(Net(), run_dir="r")
        damaged = run.latest
        (damaged / "manifest.json").write_text(content)
        trainer, _ = fit(Net(), run_dir="r", resume="latest")
        assert trainer.global_step == 10
        assert damaged.with_name(damaged.name + ".damaged").is_dir()
        # The resumed run wrote the same step again: damage it a second time.
        (damaged / "manifest.json").write_text(content)
        fit(Net(), run_dir="r", resume="latest")
        assert damaged.with_name(damaged.name + ".damaged-1").is_dir()


def test_a_foreign_parameter_is_refused_before_training():
    other = nn.Linear(1, 1)

    class ExternalWeights(Net):
        def configure_optimizers(self):
            return torch.optim.SGD([*self.parameters(), *other.parameters()], lr=0.1)

    with pytest.raises(PacelineError, match="not the module's"):
        fit(ExternalWeights())


def test_the_first_error_is_the_one_that_is_raised():
    class Failing(Net):
        def on_step_end(self):  # a fit without a step leaves no log
            raise RuntimeError("the cause")

    class Data(DataModule):
        def train_dataloader(self):
            return loader()

        def teardown(self, stage):
            raise KeyError("later")

    trainer = Trainer(accelerator="cpu", progress=False, run_dir="r")
    with pytest.raises(RuntimeError, match="the cause") as caught:
        trainer.fit(Failing(), Data())
    assert any("KeyError" in note for note in caught.value.__notes__)
    assert "the cause" in (trainer.folder / "log.txt").read_text()


def test_a_datamodules_state_is_kept():
    class Data(DataModule):
        seen = 0

        def train_dataloader(self):
            return loader()

        def state_dict(self):
            return {"seen": 7}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    data = Data()
    trainer = Trainer(accelerator="cpu", progress=False, run_dir="r", name="d")
    trainer.fit(Net(), datamodule=data)
    Trainer(accelerator="cpu", progress=False, run_dir="r", name="d", max_epochs=2).fit(
        Net(), datamodule=data, resume="latest"
    )
    assert data.seen == 7


def test_numpys_numbers_are_configuration_too():
    _, run = fit(Net(lr=np.float64(0.1)), max_time="1h")
    assert run.config["module"]["hparams"]["lr"] == 0.1


def test_a_window_cut_by_the_end_is_reported():
    trainer, run = fit(Net(), max_steps=4, log_every=3)
    assert run.metrics["train/loss"].steps == [1, 3, 4]
    assert run.metrics["train/loss"].values[-1] == trainer.metrics["train/loss"]


def test_what_is_logged_at_the_epochs_end_is_of_that_epoch():
    class Ending(Net):
        def on_train_epoch_end(self, trainer):
            self.log("number", trainer.epoch)

    _, run = fit(Ending(), max_epochs=3)
    assert run.metrics["train/number"].values == [0, 1, 2]
    assert "train/number_epoch" not in run.metrics


def test_a_run_inside_a_run_is_refused():
    class Nested(Net):
        def on_train_epoch_end(self, trainer):
            trainer.validate(self, loader())

    with pytest.raises(PacelineError, match="validate was called inside fit"):
        fit(Nested())


class Sized(Net):
    def __init__(self, *sizes, scale=1):
        super().__init__()
        self.sizes = sizes


class Consuming(Net):
    def __init__(self, config):
        super().__init__()
        self.width = config.pop("width")


@pytest.mark.parametrize(
    ("make", "hparams"),
    [
        (lambda: Sized(1, 2, scale=3), {"sizes": (1, 2), "scale": 3}),
        (lambda: Consuming({"width": 4}), {"config": {"width": 4}}),
    ],
)
def test_constructors_of_any_kind_are_built_again(make, hparams):
    module = make()
    _, run = fit(module)
    assert type(module).load_from_checkpoint(run.latest).hparams == hparams


def test_half_a_last_row_is_no_row():
    _, run = fit(Net())
    steps = run.metrics["train/loss"].steps
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')
    assert Run(run.folder).metrics["train/loss"].steps == steps


def test_a_dataset_is_no_dataloader():
    class Endless(Dataset):
        def __getitem__(self, index):
            return torch.randn(3)

    for data in (TensorDataset(torch.randn(4, 3)), Endless()):
        with pytest.raises(PacelineError, match=r"DataLoader\(dataset, batch_size"):
            fit(Net(), data)


def test_the_module_can_be_copied_and_pickled_inside_a_run():
    copies = []

    class Copied(Net):
        def on_train_epoch_end(self, trainer):
            copies.append(copy.deepcopy(self))

    module = Copied()
    fit(module)
    assert same(copies[-1], module)
    assert copies[-1]._trainer is None
    assert same(pickle.loads(pickle.dumps(Net())), Net())


def test_the_class_in_the_modules_place_is_reported():
    with pytest.raises(PacelineError, match=r"the class Net(.|\n)*fix: Net\(\)"):
        fit(Net)
