"""What cannot be translated is answered before anything is computed, with the way to do it here."""

import importlib

import pytest
import torch
from torch import nn

import paceline.compat.lightning as L
from paceline import PacelineError

from .small import Net, data, trainer


def refused(message, call, error=PacelineError):
    with pytest.raises(error, match=message) as caught:
        call()
    assert len(str(caught.value).splitlines()) <= 12


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_epoch": 3}, "did you mean max_epochs?"),
        (
            {"gpus": 2, "auto_lr_find": True},
            "gpus: use accelerator=.gpu.*\n.*auto_lr_find: use find_learning",
        ),
        ({"plugins": [object()]}, "plugins=.* is not translated"),
        ({"precision": "transformer-engine"}, "is not offered"),
        ({"precision": "bf17"}, "precision"),
        ({"accelerator": "tpu"}, "accelerator='tpu' is not offered"),
        ({"gradient_clip_algorithm": "median"}, "allowed: 'norm', 'value'"),
        ({"val_check_interval": 1.5}, "val_check_interval is a number of batches"),
        ({"check_val_every_n_epoch": None}, "counts batches over the whole run"),
        ({"callbacks": [object()]}, "callbacks= takes objects of Callback"),
        ({"max_epochs": 0.5}, "max_epochs"),
    ],
)
def test_arguments_of_the_trainer(given, message):
    refused(message, lambda: L.Trainer(**given))


class Old(Net):
    def training_epoch_end(self, outputs): ...

    def validation_step_end(self, output): ...

    def on_train_bach_end(self): ...


def test_overrides_that_nobody_calls_are_one_report():
    watch = type("Watch", (L.Callback,), {"on_batch_end": lambda self, trainer, module: None})()
    found = r"Old.training_epoch_end: on_train_epoch_end\(self\)[\s\S]*Old.validation_step_end[\s\S]*"
    found += r"Old.on_train_bach_end: no hook of Lightning's[\s\S]*Watch.on_batch_end"
    refused(found, lambda: trainer(callbacks=watch).fit(Old(), data()))


class Legacy(Net):
    def training_step(self, batch, batch_idx, optimizer_idx):
        return None


class Iterates(Net):
    def training_step(self, dataloader_iter):
        return None


@pytest.mark.parametrize(
    ("module", "message"),
    [(Legacy, "manual optimization, as in Lightning 2"), (Iterates, "take .self, batch")],
)
def test_steps_of_other_kinds(module, message):
    refused(message, lambda: trainer().fit(module(), data()))


class Manual(Net):
    automatic_optimization = False


class NoOptimizer(Net):
    def configure_optimizers(self):
        return None


class Keeps(Net):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        pass


class Median(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("median", loss, reduce_fx=torch.median)
        return loss


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Manual, {"gradient_clip_val": 1.0}, r"self.clip_gradients\(optimizer"),
        (Manual, {"accumulate_grad_batches": 2}, "accumulate is not possible with manual optimization"),
        (NoOptimizer, {}, "configure_optimizers returned None"),
        (Keeps, {}, "optimizer_zero_grad did not clear the gradients"),
        (Median, {}, "a reduction of your own is not possible"),
        (Net, {"accumulate_grad_batches": 2, "val_check_interval": 1}, "between two micro-batches"),
        (Net, {"val_check_interval": 9}, "more than the 3 batches of an epoch"),
    ],
)
def test_what_shows_at_the_fit(module, options, message):
    refused(message, lambda: trainer(**options).fit(module(), data(), data()))


def test_a_bar_that_would_not_be_drawn():
    class Bar(L.pytorch.callbacks.TQDMProgressBar):
        def init_train_tqdm(self):
            return None

    refused("Bar overrides init_train_tqdm, which would never be called", lambda: trainer(callbacks=Bar()))


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("", "Fabric", "use paceline.Trainer"),
        (".pytorch.tuner", "Tuner", "find_learning_rate"),
        (".fabric", "Fabric", "paceline.Trainer"),
        (".pytorch.accelerators", "CPUAccelerator", "accelerator="),
        (".pytorch.plugins.environments", "SLURMEnvironment", "recognised by themselves"),
        (".pytorch.demos.boring_classes", "BoringModel", "a model and data of your own"),
        (".fabric.utilities", "measure_flops", "paceline.Trainer"),
        (".pytorch.loggers", "CometLogger", "a Logger of your own"),
        (".pytorch.strategies", "XLAStrategy", "no TPU"),
    ],
)
def test_imports(module, name, message):
    found = importlib.import_module("paceline.compat.lightning" + module)
    refused(message, lambda: getattr(found, name), ImportError)
    assert not hasattr(found, "__path_of_nothing__")


def test_a_name_that_lightning_has_neither():
    found = importlib.import_module("paceline.compat.lightning.pytorch.callbacks")
    refused("docs/migration/from-lightning.md", lambda: found.ModelCheckpint, AttributeError)
    assert not hasattr(found, "ModelCheckpint")
    with pytest.raises(ImportError, match="ModelCheckpint"):
        from paceline.compat.lightning.pytorch.callbacks import ModelCheckpint  # noqa: F401


def test_attributes():
    refused("current_epoch, global_step", lambda: trainer().fit_loop.epoch_loop, AttributeError)
    refused("Trainer.max_epochs=4. and fit", lambda: setattr(trainer().fit_loop, "max_epochs", 4))
    refused("did you mean current_epoch", lambda: trainer().curent_epoch, AttributeError)
    refused("Net is not attached to a `Trainer`", lambda: Net().trainer, RuntimeError)
    refused("hparams has no 'lrr'", lambda: Net().hparams.lrr, AttributeError)


def test_what_is_no_module():
    refused("must be a `LightningModule`", lambda: trainer().fit(nn.Linear(1, 1), data()), TypeError)
    refused("where none was trained", lambda: trainer().test(), TypeError)


@pytest.mark.parametrize("name", ["WandbLogger", "MLFlowLogger"])
def test_the_client_of_a_tracker(name):
    logger = getattr(L.pytorch.loggers, name)()
    refused(r"experiment is not offered[\s\S]*log_image", lambda: logger.experiment)
