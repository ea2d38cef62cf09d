"""Checkpoints under Lightning's names: links, beside what corners.py compares with Lightning."""

from __future__ import annotations

import os
from collections import OrderedDict
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from paceline import Run
from paceline.compat.lightning.pytorch.callbacks import ModelCheckpoint
from paceline.compat.lightning.pytorch.callbacks.checkpoint_files import formatted
from paceline.compat.lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from .small import Net, data, trainer

VALUES = {"epoch": 3, "step": 40, "val_loss": torch.tensor(0.125), "val/acc": 0.5}


class Recorded(Net):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("template", "with_names", "expected"),
    [
        ("{epoch}-{step}", True, "epoch=3-step=40"),
        ("{epoch:03d}-{val_loss:.2f}", True, "epoch=003-val_loss=0.12"),
        ("e{epoch}-a{val/acc:.1f}", False, "e3-a0.5"),
        ("{nothing}", True, "nothing=0"),
        ("plain", True, "plain"),
    ],
)
def test_names(template, with_names, expected):
    assert formatted(template, VALUES, with_names) == expected


def test_a_link_is_read_as_the_checkpoint():
    keeps = ModelCheckpoint("kept", "{epoch}", monitor="val_loss", save_last=True)
    run = trainer(callbacks=[keeps], max_epochs=2)
    module = Net()
    run.fit(module, data(), data())
    assert Path(keeps.last_model_path) == Path.cwd() / "kept" / "last.ckpt"
    assert torch.equal(Net.load_from_checkpoint(keeps.last_model_path).layer.weight, module.layer.weight)
    best = Net.load_from_checkpoint(keeps.best_model_path).layer.weight
    for given in ("best", keeps.best_model_path):
        other = Net()
        run.validate(other, data(), ckpt_path=given)
        assert torch.equal(other.layer.weight, best)
    later = trainer(max_epochs=3)
    later.fit(Net(), data(), data(), ckpt_path="kept/last.ckpt")
    assert later.global_step == 9


def test_the_run_folder_is_beside_the_logs_of_lightning():
    run = trainer(logger=TensorBoardLogger("logs"), log_every_n_steps=1)
    run.fit(Recorded(lr=0.5), data())
    folder = Path("logs/lightning_logs/version_0")
    assert run.log_dir == str(folder)
    assert Run(folder / "run").latest.resolve() == run.ours.run.latest.resolve()
    assert list(folder.glob("events.out.tfevents.*"))
    assert not (run.ours.folder / "tb").exists()
    assert "lr: 0.5" in (folder / "hparams.yaml").read_text()
    assert os.listdir(folder / "checkpoints") == ["epoch=0-step=3.ckpt"]


def test_hyperparameters_are_written_whatever_they_are():
    class Many(Net):
        def __init__(self, **given):
            super().__init__()
            self.save_hyperparameters()

    class Mode(StrEnum):
        FAST = "fast"

    kept = {"mode": Mode.FAST, "part": np.float32(0.5), "weights": torch.ones(2), "sizes": OrderedDict(a=1)}
    run = trainer(logger=CSVLogger("logs"))
    run.fit(Many(**kept, api_key="hf_abcdefgh", layer_type=nn.ReLU), data())
    written = yaml.safe_load(Path(run.log_dir, "hparams.yaml").read_text())
    assert (written["mode"], written["sizes"], written["api_key"]) == ("fast", {"a": 1}, "***")
    assert "layer_type" not in written


def test_rows_and_events_are_where_each_logger_is():
    loggers = [CSVLogger("logs", "a"), TensorBoardLogger("logs", "b", version="mine")]
    trainer(logger=loggers, log_every_n_steps=1).fit(Net(), data())
    assert Path("logs/a/version_0/metrics.csv").is_file()
    assert list(Path("logs/b/mine").glob("events.out.tfevents.*"))
    assert not Path("logs/b/version_0").exists()


def test_an_address_has_no_links():
    keeps = ModelCheckpoint("s3://bucket/kept")
    run = trainer(callbacks=[keeps])
    run.fit(Net(), data())
    assert keeps.dirpath == "s3://bucket/kept"
    assert Path(keeps.best_model_path).parent == Path(run.ours.folder) / "checkpoints"


def test_a_file_system_without_links_is_reported_and_training_goes_on(monkeypatch):
    def refuse(*given, **more):
        raise OSError("no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    keeps = ModelCheckpoint("kept")
    run = trainer(callbacks=[keeps])
    run.fit(Net(), data())
    printed = (Path(run.ours.folder) / "log.txt").read_text()
    assert "warning: step-00000003 has no link under Lightning's name: no links here" in printed
    assert Path(keeps.best_model_path) == Path(run.ours.folder).resolve() / "checkpoints" / "step-00000003"
