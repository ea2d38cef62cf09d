"""YAML files of LightningCLI become files that ``paceline fit`` reads, or say line by line what cannot."""

import ast
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from paceline.__main__ import app
from paceline.compat.migrate.lightning.cli_config import Classes, classes_of, configs, translate

BASE = """\
seed_everything: 11
trainer:
  precision: bf16-mixed
  gradient_clip_val: 0.5
  check_val_every_n_epoch: 2
  strategy: ddp_find_unused_parameters_true
  logger:
    class_path: lightning.pytorch.loggers.CSVLogger
    init_args: {save_dir: logs}
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args:
        monitor: val_loss
        save_top_k: 2
    - class_path: EarlyStopping
      init_args: {monitor: val_loss/dataloader_idx_1, patience: 4}
    - class_path: lightning.pytorch.callbacks.BackboneFinetuning
    - class_path: mine.Callback
model:
  class_path: mine.Net
  init_args:
    width: 8
    optimizer:
      class_path: torch.optim.AdamW
      init_args: {lr: 0.02}
data:
  size: 48
note: first
ckpt_path: last.ckpt
other: null
"""
NATIVE = {
    "trainer": {
        "seed": 11,
        "precision": "bf16",
        "clip_grad_norm": 0.5,
        "validate_every": "2ep",
    },
    "callbacks": [
        {"class": "Checkpoint", "monitor": "val_loss", "keep": 1, "keep_best": 2, "mode": "min"},
        {"class": "EarlyStopping", "monitor": "val/1/loss", "patience": 4, "mode": "min"},
        {"class": "mine.Callback"},
    ],
    "loggers": [{"class": "CSVLogger"}],
    "module": {
        "class": "mine.Net",
        "width": 8,
        "optimizer": {"class": "torch.optim.AdamW", "lr": 0.02},
    },
    "data": {"class": "project:Points", "size": 48},
}


def test_a_file_is_translated_and_says_what_it_cannot():
    found = translate(Path("base.yaml"), BASE, Classes("project:Net", "project:Points"))
    assert found.content == NATIVE
    assert [(line, name) for line, name, _ in sorted(found.left)] == [
        (6, "trainer.strategy"),
        (17, "trainer.callbacks: BackboneFinetuning"),
        (18, "trainer.callbacks: mine.Callback"),
        (28, "note"),
        (29, "ckpt_path"),
    ]
    assert found.text().startswith("# base.yaml:6: trainer.strategy: write DDP(find_unused")
    assert yaml.safe_load(found.text()) == NATIVE


def test_a_file_of_changes_changes_no_more():
    text = "trainer: {log_every_n_steps: 1}\nmodel:\n  lr_scheduler:\n    init_args: {gamma: 0.5}\n"
    found = translate(Path("more.yaml"), text, Classes("project:Net"))
    assert found.content == {
        "trainer": {"log_every": 1},
        "module": {"class": "project:Net", "lr_scheduler": {"gamma": 0.5}},
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "from a import Net, Data\nfrom lightning import cli\ncli.LightningCLI(Net, Data)",
            2,
        ),
        ("from a import Net\nclass My(LightningCLI): ...\nMy(model_class=Net, run=False)", 1),
        ("LightningCLI()", 0),
    ],
)
def test_the_classes_are_those_of_the_call(source, expected):
    expected = Classes(*["a:Net", "a:Data"][:expected])
    assert classes_of(ast.parse(source), "main") == expected


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    assert configs(tmp_path) == []  # no program there calls LightningCLI
    assert [one.path.name for one in configs(tmp_path / "base.yaml")] == ["base.yaml"]
    assert translate(Path("a.yaml"), "services: {web: 1}\n", Classes()) is None
    assert translate(Path("a.yaml"), "a: [", Classes()) is None


PROJECT = """\
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(LightningModule):
    def __init__(self, width: int = 1, optimizer: OptimizerCallable = torch.optim.SGD):
        super().__init__()
        self.line, self.optimizer = nn.Linear(2, width), optimizer

    def training_step(self, batch, batch_idx):
        return (self.line(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self):
        return self.optimizer(self.parameters())


class Points(LightningDataModule):
    def __init__(self, size: int = 4):
        super().__init__()
        x = torch.linspace(-1, 1, 2 * size).reshape(size, 2)
        self.points = TensorDataset(x, x.sum(1, keepdim=True))

    def train_dataloader(self):
        return DataLoader(self.points, 4)
"""
MAIN = """\
from clipoints import Line, Points
from lightning.pytorch.cli import LightningCLI

if __name__ == "__main__":
    LightningCLI(Line, Points)
"""
CONFIG = """\
trainer: {accelerator: cpu, enable_progress_bar: false, logger: false}
model:
  width: 3
  optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
data: {size: 16}
"""


@pytest.mark.fit
def test_what_is_written_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("clipoints.py", PROJECT), ("main.py", MAIN), ("base.yaml", CONFIG)):
        Path(name).write_text(text)
    Path("more.yaml").write_text("trainer: {max_epochs: 2}\n")
    written = CliRunner().invoke(app, ["migrate", ".", "--write", "--yes"])
    assert written.exit_code == 1, written.output  # LightningCLI is left in main.py
    fitted = CliRunner().invoke(app, ["fit", "base.paceline.yaml", "--config", "more.paceline.yaml"])
    assert fitted.exit_code == 0, fitted.output
    assert Path("runs/line/1/checkpoints/step-00000008").is_dir()
    assert yaml.safe_load(Path("runs/line/1/config.yaml").read_text())["trainer"]["max_epochs"] == 2
