"""Corners of Lightning code that were silently wrong once: each has its case."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import paceline.compat.lightning as L
from paceline import PacelineError
from paceline.compat.lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from paceline.compat.lightning.pytorch.loggers import Logger

from .small import Net, data, trainer


class Scaled(Net):
    def predict_step(self, batch, batch_idx, scale=5):
        return self.layer(batch[0]) * scale


def test_an_argument_of_a_step_with_a_default_keeps_it():
    module = Scaled()
    found = trainer().predict(module, data(4))[0]
    assert torch.equal(found, module.layer(next(iter(data(4)))[0]) * 5)


def test_predictions_of_several_loaders_are_a_list_for_each():
    found = trainer().predict(Scaled(), [data(8), data(4)])
    assert [len(one) for one in found] == [2, 1]


class Remembers(Net):
    note = None

    def on_save_checkpoint(self, checkpoint):
        checkpoint["note"] = 7

    def on_load_checkpoint(self, checkpoint):
        self.note = checkpoint["note"]

    def test_step(self, batch, batch_idx):
        self.log("note", float(self.note or 0))


def test_the_hook_of_loading_is_called_wherever_weights_are_loaded():
    run = trainer()
    run.fit(Remembers(), data())
    path = run.checkpoint_callback.best_model_path
    assert Remembers.load_from_checkpoint(path).note == 7
    assert trainer().test(Remembers(), data(), ckpt_path=path) == [{"note": 7.0}]


class SameName(Net):
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss * 0 + self.current_epoch + batch_idx, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("loss", -1.0)


def test_a_name_of_training_and_validation_means_the_newest():
    class Notes(L.Callback):
        def on_validation_end(self, trainer, pl_module):
            found.append(("validation", float(trainer.callback_metrics["loss"])))

        def on_train_end(self, trainer, pl_module):
            found.append(("end", float(trainer.callback_metrics["loss"])))

    found = []
    keeps = ModelCheckpoint(monitor="loss", mode="max")
    run = trainer(max_epochs=3, callbacks=[Notes(), keeps], num_sanity_val_steps=0)
    run.fit(SameName(), data(), data())
    assert found == [("validation", -1.0)] * 3 + [("end", 3.0)]  # the mean of 2, 3 and 4
    assert float(keeps.best_model_score) == 3.0


class TwoNames(Net):
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", 1.0, on_epoch=True)
        self.log("train_loss", 2.0, on_epoch=True)
        return loss


def test_values_are_not_mixed_with_others_nor_with_the_loss():
    rows = []

    class Keeps(Logger):
        def log_metrics(self, metrics, step=None):
            rows.append(metrics)

    run = trainer(logger=Keeps(), log_every_n_steps=1)
    run.fit(TwoNames(), data())
    metrics = {name: float(value) for name, value in run.callback_metrics.items()}
    assert metrics == dict.fromkeys(("loss", "loss_step", "loss_epoch"), 1.0) | dict.fromkeys(
        ("train_loss", "train_loss_step", "train_loss_epoch"), 2.0
    )
    assert rows[0]["loss_step"] == 1.0
    assert rows[0]["train_loss_step"] == 2.0
    assert rows[-1]["loss_epoch"] == 1.0
    assert rows[0]["epoch"] == 0


class EndsEarly(Net):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 1 else None

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.08)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def test_an_epoch_that_is_ended_steps_its_schedules_and_validates_not():
    class Notes(L.Callback):
        def on_validation_end(self, trainer, pl_module):
            raise AssertionError

    run = trainer(max_epochs=3, callbacks=Notes(), num_sanity_val_steps=0)
    run.fit(EndsEarly(), data(), data())
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_a_value_that_is_never_logged_is_an_error(kind):
    with pytest.raises(PacelineError, match=f"{kind.__name__} watches 'nope', which was not logged"):
        trainer(callbacks=kind(monitor="nope")).fit(Net(), data(), data())


def test_a_second_fit_trains_nothing_unless_a_limit_is_raised(capsys):
    run = trainer(enable_progress_bar=True)
    run.fit(Net(), data())
    run.fit(Net(), data())
    assert "at its limit already (max_epochs=1 reached)" in capsys.readouterr().out
    assert (run.current_epoch, run.global_step) == (1, 3)


def test_a_second_fit_reads_other_samples_than_the_first():
    class Notes(Net):
        def training_step(self, batch, batch_idx):
            order.extend(batch[0][:, 0].tolist())
            return super().training_step(batch, batch_idx)

    order, module = [], Notes()
    shuffled = DataLoader(data().dataset, batch_size=4, shuffle=True)
    run = trainer(enable_checkpointing=False)
    for _ in range(2):
        run.fit(module, shuffled)
        run.fit_loop.max_epochs += 1
    first, second = order[:12], order[12:]
    assert first != second
    assert sorted(first) == sorted(second)
    order.clear()
    trainer(max_epochs=2, enable_checkpointing=False).fit(Notes(), shuffled)
    assert order == first + second


class Late(EarlyStopping):
    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch >= 3:
            super().on_train_epoch_end(trainer, pl_module)


def test_a_subclass_decides_when_early_stopping_looks():
    run = trainer(max_epochs=9, callbacks=Late("val_loss", patience=1, min_delta=1e9))
    run.fit(Net(), data(), data())
    assert run.current_epoch == 5


class Own(ModelCheckpoint):
    def check_monitor_top_k(self, trainer, current=None):
        return True


def test_a_subclass_that_overrides_in_vain_is_refused():
    with pytest.raises(PacelineError, match=r"Own overrides .* which would never be called"):
        trainer(callbacks=Own())


class Clips(Net):
    clipped = 0

    def clip_gradients(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clipped += 1
        super().clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)


def test_an_overridden_clip_gradients_is_called():
    module, plain = Clips(), Net()
    trainer(gradient_clip_val=0.1).fit(module, data())
    trainer(gradient_clip_val=0.1).fit(plain, data())
    assert module.clipped == 3
    assert torch.equal(module.layer.weight, plain.layer.weight)


def test_callbacks_that_are_added_later_are_called():
    class Notes(L.Callback):
        def on_test_end(self, trainer, pl_module):
            found.append("test")

    found = []
    run = trainer(max_epochs=9)
    run.callbacks.append(EarlyStopping("val_loss", patience=1, min_delta=1e9))
    module = Remembers()
    run.fit(module, data(), data())
    assert run.current_epoch == 2
    run.callbacks.append(Notes())
    run.test(module, data())
    assert found == ["test"]


def test_hyperparameters_are_those_of_all_constructors_as_they_are():
    class Base(Net):
        def __init__(self, lr=0.1, **more):
            super().__init__()
            lr *= 2
            self.save_hyperparameters()

    class Child(Base):
        def __init__(self, depth=3, **more):
            super().__init__(lr=0.2, **more)

    module = Child(width=4)
    assert dict(module.hparams) == {"lr": 0.4, "width": 4, "depth": 3}
    module.hparams.depth = 5
    run = trainer()
    run.fit(module, data())
    assert Child.load_from_checkpoint(run.checkpoint_callback.best_model_path).hparams.depth == 5


class Collides(Net):
    def __init__(self):
        super().__init__()
        for name in (
            "configs",
            "frozen",
            "batches",
            "ends",
            "micro_batch",
            "_session",
            "_adapter",
            "_arguments",
        ):
            setattr(self, name, nn.Linear(3, 1))

    def on_policy_loss(self):
        return 0


def test_names_of_a_module_are_its_own():
    module = Collides()
    run = trainer()
    run.fit(module, data())
    assert isinstance(module.configs, nn.Linear)
    run.save_checkpoint("kept")
    assert Collides.load_from_checkpoint("kept").layer.weight.equal(module.layer.weight)


def test_steps_of_true_double_precision_make_doubles():
    class Doubles(Net):
        def training_step(self, batch, batch_idx):
            assert torch.zeros(1).dtype == torch.float64
            return super().training_step(batch, batch_idx)

    trainer(precision="64-true").fit(Doubles(), data())
    assert torch.get_default_dtype() == torch.float32


def test_should_stop_validates_once_more():
    class Stops(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            trainer.should_stop = trainer.global_step == 4

        def on_validation_end(self, trainer, pl_module):
            found.append(trainer.global_step)

    found = []
    run = trainer(max_epochs=9, callbacks=Stops(), num_sanity_val_steps=0)
    run.fit(Net(), data(), data())
    assert found == [3, 4]
    assert run.global_step == 4


def test_the_strategy_has_lightnings_methods_for_ranks():
    run = trainer()
    run.fit(Net(), data())
    strategy = run.strategy
    strategy.barrier("here")
    assert strategy.broadcast({"a": 1}, src=0) == {"a": 1}
    assert strategy.reduce(torch.tensor(3.0), reduce_op="mean") == 3
    assert (strategy.world_size, strategy.global_rank, strategy.is_global_zero) == (1, 0, True)
    assert strategy.root_device == torch.device("cpu")
    assert strategy.lightning_module is strategy.model is run.lightning_module
    with pytest.raises(AttributeError, match="reduce_boolean_decision"):
        strategy.reduce_bolean_decision  # noqa: B018


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enable_checkpointing": False, "callbacks": [ModelCheckpoint()]}, "has a ModelCheckpoint"),
        ({"logger": 3}, "logger= takes .* got: int"),
        ({"gradient_clip_val": "a"}, "gradient_clip_val is no number"),
    ],
)
def test_a_wrong_value_is_named(given, message):
    with pytest.raises(PacelineError, match=message.replace(" got", "[\\s\\S]*got")):
        L.Trainer(**given)


class Loaders(L.LightningDataModule):
    def __init__(self, size=4, unused=None):
        super().__init__()
        self.save_hyperparameters()
        self.extra = self.hparams.pop("unused")
        self.hparams["more"] = 3

    def train_dataloader(self):
        return data()


def test_a_data_module_is_made_from_the_arguments_in_a_checkpoint():
    run = trainer()
    run.fit(Net(), datamodule=Loaders(7))
    path = run.checkpoint_callback.best_model_path
    assert Loaders.load_from_checkpoint(path).hparams.size == 7
    assert Loaders.load_from_checkpoint(path, size=5).hparams.size == 5


def test_a_data_module_gets_its_state_of_a_checkpoint_and_else_its_defaults():
    class Stateful(Loaders):
        def state_dict(self):
            return {"seen": 5}

        def load_state_dict(self, state_dict):
            self.seen = state_dict["seen"]

    run = trainer()
    run.fit(Net(), datamodule=Stateful(7))
    found = Stateful.load_from_checkpoint(run.checkpoint_callback.best_model_path)
    assert (found.hparams.size, found.seen) == (7, 5)
    run = trainer()
    run.fit(Net(), data())
    found = Stateful.load_from_checkpoint(run.checkpoint_callback.best_model_path)
    assert found.hparams.size == 4
    assert not hasattr(found, "seen")


def test_float16_on_a_cpu_is_explained(capsys):
    trainer(precision="16-mixed", enable_progress_bar=True).fit(Net(), data())
    assert "precision='16-mixed' is bfloat16 on a CPU, as in Lightning" in capsys.readouterr().out


def test_parts_of_the_data_are_explained(capsys):
    options = {"limit_train_batches": 0.7, "limit_val_batches": 0.5, "val_check_interval": 0.5}
    run = trainer(**options, accumulate_grad_batches=2, enable_progress_bar=True)
    run.fit(Net(), data(28), data(12))
    printed = capsys.readouterr().out
    assert "limit_train_batches=0.7 of 7 batches: 4" in printed
    assert "limit_val_batches=0.5 of 3 batches: 1" in printed
    assert "val_check_interval=0.5 of 4 batches: every 2" in printed
    trainer(val_check_interval=3, accumulate_grad_batches=2, enable_progress_bar=True).fit(
        Net(), data(28), data(12)
    )
    assert "validates every 3 batches, and an optimizer step has 2" in capsys.readouterr().out


class LogsItsLoss(Net):
    """Logs under a name of the loss what it returns, or from some step on something else."""

    def __init__(self, name, factor=1.0, since=0, automatic=True):
        super().__init__()
        self.name, self.factor, self.since, self.automatic_optimization = name, factor, since, automatic

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        factor = self.factor if self.global_step >= self.since else 1.0
        self.log(self.name, loss.detach() * factor, on_step=True, on_epoch=True, prog_bar=True)
        if not self.automatic_optimization:
            self.manual_backward(loss)
            self.optimizers().step()
            self.optimizers().zero_grad()
        return loss


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ({"name": "loss"}, {"train/loss"}),
        ({"name": "train_loss"}, {"train/loss"}),
        ({"name": "loss", "automatic": False}, {"train/loss"}),
        ({"name": "loss", "factor": 2.0}, {"train/loss", "train/loss_logged"}),
        ({"name": "train_loss", "factor": 2.0, "since": 2}, {"train/loss", "train/train_loss"}),
    ],
)
def test_a_loss_that_is_logged_too_has_one_name_unless_it_is_another_value(tmp_path, arguments, files):
    run = L.Trainer(
        max_epochs=2, log_every_n_steps=1, default_root_dir=tmp_path, enable_model_summary=False
    )
    module = LogsItsLoss(**arguments)
    run.fit(module, data())
    (path,) = tmp_path.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = {name for row in rows for name in row if "loss" in name}
    assert names == files | {f"{name}_epoch" for name in files}
    by_name = {name: [row[name] for row in rows if name in row] for name in names}
    factor, name = arguments.get("factor", 1.0), arguments["name"]
    for kind in ("step", "epoch"):
        ours = by_name["train/loss_epoch" if kind == "epoch" else "train/loss"][-1]
        assert float(run.callback_metrics[f"{name}_{kind}"]) == pytest.approx(factor * ours, rel=1e-6)
        assert f"{name}_{kind}" in run.logged_metrics
    shown = {name for name in run.progress_bar_metrics if "loss" in name}
    assert shown == {f"{arguments['name']}_step", f"{arguments['name']}_epoch"}
