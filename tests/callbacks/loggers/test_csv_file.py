"""metrics.csv, read back with the csv module."""

import csv

import torch
from helpers.loggers import NO_DEFAULTS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint, CSVLogger


class Module(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(2, 1)

    def training_step(self, batch):
        if self.global_step == 4:
            self.log("late, and odd", 0.5)
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch):
        return {"accuracy": 0.25}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


def fit(resume=None, **settings):
    x = torch.linspace(-1, 1, 24).reshape(12, 2)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
    settings = {"progress": False, "max_epochs": 2, "log_every": 1} | settings
    trainer = Trainer(
        loggers=[CSVLogger(), "-tensorboard", "-curves"],
        callbacks=Checkpoint(every=2), name="r", accelerator="cpu",
        **settings,
    )  # fmt: skip
    return trainer.fit(Module(), data, data, resume=resume)


def rows(run):
    with (run.folder / "metrics.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def test_it_has_every_row_and_value():
    run = fit()
    assert rows(run) == run.rows
    header = (run.folder / "metrics.csv").read_text().splitlines()[0]
    assert header.startswith("step,epoch,time,samples,train/loss,")
    assert '"train/late, and odd"' in header


def test_a_resumed_run_has_each_step_once_and_drops_a_line_that_was_cut():
    first = fit(max_steps=3, max_epochs=None)
    path = first.folder / "metrics.csv"
    columns = path.read_text().splitlines()[0].count(",")
    path.write_text(path.read_text() + "4,1,0.5,16" + "," * (columns - 3) + "\n5,1,0")
    run = fit(resume="latest")
    assert run.folder == first.folder
    found = rows(run)
    steps = [row["step"] for row in found if "train/loss" in row and "train/loss_epoch" not in row]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert found == run.rows


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit_nowhere()
    assert list(tmp_path.iterdir()) == []


def fit_nowhere():
    trainer = Trainer(loggers=[CSVLogger(), *NO_DEFAULTS], run_dir=None, progress=False, max_epochs=1)
    x = torch.ones(4, 2)
    trainer.fit(Module(), DataLoader(TensorDataset(x, x[:, :1]), 2))
