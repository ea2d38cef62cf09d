"""What cannot be translated is answered before anything is computed, with the way to do it here."""

import importlib

import pytest
import torch
from torch import nn

import paceline.compat.lightning as L
from paceline import PacelineError
from paceline.compat.lightning.other_paths import PATHS
from paceline.compat.lightning.pytorch.plugins import MixedPrecision

from .small import Net, data, trainer


def refused(message, call, error=PacelineError):
    with pytest.raises(error, match=message) as caught:
        call()
    assert len(str(caught.value).splitlines()) <= 12


class Scaled(MixedPrecision):
    """A plugin of a user's own."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_epoch": 3}, "did you mean max_epochs?"),
        (
            {"gpus": 2, "auto_lr_find": True},
            "gpus: use accelerator=.gpu.*\n.*auto_lr_find: use find_learning",
        ),
        ({"plugins": [object()]}, "plugins=.* takes no object"),
        (
            {"plugins": Scaled("16-mixed")},
            "takes no Scaled, a Precision\n.*Precision of paceline.strategies",
        ),
        ({"val_check_interval": "soon"}, "or a time"),
        ({"val_check_interval": "00:00:01:00", "check_val_every_n_epoch": 2}, "in every epoch then"),
        ({"precision": "transformer-engine"}, "is not offered"),
        ({"precision": "bf17"}, "precision"),
        ({"accelerator": "tpu"}, "accelerator='tpu' is not offered"),
        ({"gradient_clip_algorithm": "median"}, "allowed: 'norm', 'value'"),
        ({"val_check_interval": 1.5}, "val_check_interval is a number of batches"),
        ({"check_val_every_n_epoch": None, "val_check_interval": 0.5}, "counts batches over the whole run"),
        ({"callbacks": [object()]}, "callbacks= takes objects of Callback"),
        ({"max_epochs": 0.5}, "max_epochs"),
    ],
)
def test_arguments_of_the_trainer(given, message):
    refused(message, lambda: L.Trainer(**given))


class Old(Net):
    def training_epoch_end(self, outputs): ...


def test_overrides_that_lightning_refuses_are_one_report():
    found = r"Old.training_epoch_end: on_train_epoch_end\(self\)[\s\S]*write what is named"
    refused(found, lambda: trainer().fit(Old(), data()))


class Own(Net):
    """Has a method of the name of an old hook, which it calls itself: Lightning lets it."""

    def on_train_epoch_end(self):
        self.on_epoch_end()

    def on_epoch_end(self):
        self.ended = True


def test_what_lightning_ignores_is_a_line(capsys):
    watch = type("Watch", (L.Callback,), {"on_batch_end": lambda self, trainer, module: None})()
    bar = type("Bar", (L.pytorch.callbacks.TQDMProgressBar,), {"init_train_tqdm": lambda self: None})()
    module = Own()
    trainer(callbacks=[watch, bar], enable_progress_bar=True).fit(module, data())
    assert module.ended
    printed = capsys.readouterr().out
    assert "never called by the trainer: Own.on_epoch_end: on_train_epoch_end(self)" in printed
    assert "never called by the trainer: Watch.on_batch_end: on_train_batch_end" in printed
    assert "Bar overrides init_train_tqdm, which is not called" in printed


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
        (Net, {"val_check_interval": 9}, "more than the 3 batches of an epoch"),
    ],
)
def test_what_shows_at_the_fit(module, options, message):
    refused(message, lambda: trainer(**options).fit(module(), data(), data()))


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (".fabric", "Callback", "paceline.Trainer"),
        (".pytorch.accelerators", "XLAAccelerator", "no TPU"),
        (".pytorch.plugins", "TransformerEnginePrecision", "bf16-mixed"),
        (".pytorch.plugins.environments", "XLAEnvironment", "no TPU"),
        (".pytorch.demos", "WikiText2", "a model and data of your own"),
        (".fabric.utilities", "measure_flops", "paceline.Trainer"),
        (".pytorch.loggers", "CometLogger", "a Logger of your own"),
        (".pytorch.strategies", "XLAStrategy", "no TPU"),
    ],
)
def test_imports(module, name, message):
    found = importlib.import_module("paceline.compat.lightning" + module)
    refused(message, getattr(found, name))
    refused(message, lambda: type("Own", (getattr(found, name),), {}))
    assert not hasattr(found, "__path_of_nothing__")


def test_a_constant_is_no_value_that_could_be_taken_for_one():
    found = importlib.import_module("paceline.compat.lightning.fabric.utilities.imports")
    refused("private to Lightning", lambda: found._NUMPY_AVAILABLE, ImportError)


@pytest.mark.parametrize("path", sorted(PATHS))
def test_lightnings_other_paths(path):
    root = "paceline.compat.lightning"
    found = importlib.import_module(f"{root}.{path}")
    assert found is importlib.import_module(f"{root}.{PATHS[path]}")
    above, _, last = path.rpartition(".")
    assert hasattr(importlib.import_module(f"{root}.{above}"), last)


def test_a_name_that_lightning_has_neither():
    found = importlib.import_module("paceline.compat.lightning.pytorch.callbacks")
    refused("docs/migration/from-lightning.md", lambda: found.ModelCheckpint, AttributeError)
    assert not hasattr(found, "ModelCheckpint")
    with pytest.raises(ImportError, match="ModelCheckpint"):
        from paceline.compat.lightning.pytorch.callbacks import ModelCheckpint  # noqa: F401


def test_attributes():
    refused("did you mean batch_idx", lambda: trainer().fit_loop.batch_index, AttributeError)
    refused("allowed: max_epochs, min_epochs", lambda: setattr(trainer().fit_loop, "epoch", 4))
    refused("did you mean current_epoch", lambda: trainer().curent_epoch, AttributeError)
    refused("Net is not attached to a `Trainer`", lambda: Net().trainer, RuntimeError)
    refused("hparams has no 'lrr'", lambda: Net().hparams.lrr, AttributeError)


def test_what_is_no_module():
    refused("must be a `LightningModule`", lambda: trainer().fit(nn.Linear(1, 1), data()), TypeError)
    refused("where none was trained", lambda: trainer().test(), TypeError)
