"""What loggers get: the rows and hyperparameters that they get under Lightning."""

import csv
import importlib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PACKAGES = ["lightning", "paceline.compat.lightning"]
QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(params=PACKAGES)
def package(request, tmp_path, monkeypatch):
    """Lightning itself, where it is installed, and the package here."""
    monkeypatch.chdir(tmp_path)
    if request.param == "lightning":
        pytest.importorskip("lightning")
    return importlib.import_module(request.param)


def module(package):
    class Net(package.LightningModule):
        def __init__(self, lr=0.1, width=2):
            super().__init__()
            self.save_hyperparameters()
            self.layer = nn.Linear(3, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.layer(batch[0]).square().mean())

        def on_validation_epoch_end(self):
            self.log("val_count", 3.0)
            self.logger.log_metrics({"extra": 1.0}, self.global_step)

        def test_step(self, batch, batch_idx):
            self.log("test_loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Net()


def data():
    return DataLoader(TensorDataset(torch.ones(8, 3)), 4)


def own_logger(package):
    base = importlib.import_module(f"{package.__name__}.pytorch.loggers").Logger

    class Kept(base):
        name, version = "kept", 0

        def __init__(self):
            super().__init__()
            self.rows, self.hparams = [], []

        def log_metrics(self, metrics, step=None):
            self.rows.append((sorted(metrics), step))

        def log_hyperparams(self, params, *args, **kwargs):
            self.hparams.append(dict(params))

    return Kept()


@pytest.mark.fit
def test_values_of_a_validation_are_one_row(package):
    logger = own_logger(package)
    trainer = package.Trainer(max_epochs=2, logger=logger, **QUIET)
    trainer.fit(module(package), data(), data())
    row = ["epoch", "val_count", "val_loss"]
    assert [one for one in logger.rows if one[0] != ["extra"]] == [(row, 1), (row, 3)]


@pytest.mark.fit
def test_values_of_a_validation_are_one_line_of_a_file(package):
    loggers = importlib.import_module(f"{package.__name__}.pytorch.loggers")
    trainer = package.Trainer(max_epochs=2, logger=loggers.CSVLogger("logs"), **QUIET)
    trainer.fit(module(package), data(), data())
    with Path("logs/lightning_logs/version_0/metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["val_loss"]]
    assert [(row["step"], row["val_count"], row["epoch"]) for row in rows] == [
        ("1", "3.0", "0"),
        ("3", "3.0", "1"),
    ]


@pytest.mark.fit
def test_hyperparameters_are_logged_in_each_stage(package):
    logger, net = own_logger(package), module(package)
    trainer = package.Trainer(max_epochs=1, logger=logger, **QUIET)
    trainer.test(net, data(), verbose=False)
    assert logger.hparams == [{"lr": 0.1, "width": 2}]
    trainer.fit(net, data())
    assert logger.hparams == [{"lr": 0.1, "width": 2}] * 2


@pytest.mark.fit
def test_an_evaluation_writes_hyperparameters_beside_its_values(package):
    loggers = importlib.import_module(f"{package.__name__}.pytorch.loggers")
    trainer = package.Trainer(logger=loggers.CSVLogger("logs"), **QUIET)
    trainer.test(module(package), data(), verbose=False)
    assert "lr: 0.1" in Path("logs/lightning_logs/version_0/hparams.yaml").read_text()


def test_a_single_metric_of_hyperparameters_has_the_name_of_lightning(package):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = importlib.import_module(f"{package.__name__}.pytorch.loggers")
    logger = loggers.TensorBoardLogger("logs", "a", version=0)
    logger.log_hyperparams({"lr": 0.1}, 0.5)
    logger.experiment.flush()
    read = events.EventAccumulator("logs/a/version_0").Reload()
    assert [one.value for one in read.Scalars("hp_metric")] == [0.5]
