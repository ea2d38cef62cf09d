"""Checkpoints as Lightning's files, beside what corners.py compares with Lightning."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections import OrderedDict
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from helpers.ranks import run_ranks
from torch import nn

from paceline import PacelineError, Run
from paceline.compat.lightning.pytorch.callbacks import Callback, ModelCheckpoint
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


def test_a_file_is_read_as_the_checkpoint():
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


def fitted(module=None, **settings):
    keeps = ModelCheckpoint("kept", "{epoch}", monitor="val_loss")
    run = trainer(callbacks=[keeps], max_epochs=2, **settings)
    run.fit(module or Net(), data(), data())
    return run, keeps


def test_torch_reads_what_programs_look_for():
    run, keeps = fitted(Recorded(lr=0.5))
    found = torch.load(keeps.best_model_path, weights_only=True)
    assert (found["epoch"], found["global_step"], found["hyper_parameters"]) == (1, 6, {"lr": 0.5})
    assert torch.equal(found["state_dict"]["layer.weight"], run.lightning_module.layer.weight)
    other = Net()
    other.load_state_dict(found["state_dict"])
    assert torch.load(keeps.best_model_path, weights_only=True, mmap=True).keys() == found.keys()


def test_a_file_can_be_removed_and_replaced():
    run, keeps = fitted()
    os.remove(keeps.best_model_path)
    Path(keeps.best_model_path).write_text("mine")
    run.fit_loop.max_epochs = 4
    run.fit(run.lightning_module, data(), data())
    assert Path("kept/epoch=1.ckpt").read_text() == "mine"
    assert Net.load_from_checkpoint(keeps.best_model_path)


def test_a_run_resumes_from_the_folder_that_a_file_names(tmp_path):
    run, keeps = fitted()
    moved = tmp_path / "elsewhere.ckpt"
    os.replace(keeps.best_model_path, moved)
    later = trainer(max_epochs=3)
    later.fit(Net(), data(), data(), ckpt_path=moved)
    assert later.global_step == 9
    shutil.rmtree(run.ours.folder)
    weights = run.lightning_module.layer.weight
    assert torch.equal(Net.load_from_checkpoint(moved).layer.weight, weights)
    with pytest.raises(PacelineError, match="the folder with its optimizer"):
        later.fit(Net(), data(), data(), ckpt_path=moved)


def test_a_folder_that_was_written_anew_is_another_checkpoint():
    run, _ = fitted()
    shutil.rmtree(run.ours.folder)
    fitted(default_root_dir=".")
    manifest = next(Path(run.ours.folder).glob("checkpoints/*/manifest.json"))
    assert manifest.is_file()  # at the same place
    with pytest.raises(PacelineError, match="was written again"):
        trainer(max_epochs=3).fit(Net(), data(), data(), ckpt_path="kept/epoch=1.ckpt")


def test_a_file_that_a_program_has_written_again_is_weights_alone():
    _, keeps = fitted()
    content = torch.load(keeps.best_model_path, weights_only=True)
    content["state_dict"]["layer.weight"].zero_()
    torch.save(content, "edited.ckpt")
    assert not Net.load_from_checkpoint("edited.ckpt").layer.weight.any()
    with pytest.raises(PacelineError, match="weights"):
        trainer(max_epochs=3).fit(Net(), data(), data(), ckpt_path="edited.ckpt")


class Setting:
    def __init__(self, rate):
        self.rate = rate


class Hooked(Recorded):
    loads: ClassVar[list[object]] = []

    def on_save_checkpoint(self, checkpoint):
        checkpoint["note"], checkpoint["setting"] = [1, 2], Setting(0.25)
        checkpoint["call"] = lambda: None
        checkpoint["hyper_parameters"]["more"] = 3
        weights = checkpoint["state_dict"]
        checkpoint["state_dict"] = {f"old.{name}": value for name, value in weights.items()}

    def on_load_checkpoint(self, checkpoint):
        self.loads.append((checkpoint["note"], checkpoint.get("setting")))
        weights = checkpoint["state_dict"]
        checkpoint["state_dict"] = {n.removeprefix("old."): value for n, value in weights.items()}


def test_what_hooks_make_of_a_checkpoint_is_in_its_file():
    run, keeps = fitted(Hooked(lr=0.5))
    path, weight = keeps.best_model_path, run.lightning_module.layer.weight
    found = torch.load(path, weights_only=False)
    assert found["note"] == [1, 2]
    assert found["setting"].rate == 0.25
    assert found["hyper_parameters"] == {"lr": 0.5, "more": 3}
    assert torch.equal(found["state_dict"]["old.layer.weight"], weight)
    assert "call" not in found
    printed = (Path(run.ours.folder) / "log.txt").read_text()
    assert "warning: call cannot be pickled" in printed
    assert "on_save_checkpoint adds 'setting' (Setting)" in printed
    for options, expected in (({}, None), ({"weights_only": False}, 0.25)):
        Hooked.loads.clear()
        assert torch.equal(Hooked.load_from_checkpoint(path, **options).layer.weight, weight)
        later = trainer(max_epochs=3)
        later.fit(Hooked(lr=0.5), data(), data(), ckpt_path=path, **options)
        later.validate(Hooked(lr=0.5), data(), ckpt_path=path, **options)
        rates = [getattr(setting, "rate", None) for _, setting in Hooked.loads]
        assert [note for note, _ in Hooked.loads] == [[1, 2]] * 3
        assert rates == [expected] * 3


def test_save_checkpoint_has_the_weights_of_now():
    run, _ = fitted()
    run.save_checkpoint("same.ckpt")
    with torch.no_grad():
        run.lightning_module.layer.weight.zero_()
    run.save_checkpoint("changed.ckpt")
    run.save_checkpoint("light.ckpt", weights_only=True)
    assert not torch.load("changed.ckpt")["state_dict"]["layer.weight"].any()
    later = trainer(max_epochs=3)
    later.fit(Net(), data(), data(), ckpt_path="same.ckpt")
    assert later.global_step == 9
    for path in ("changed.ckpt", "light.ckpt"):
        with pytest.raises(PacelineError, match="weights"):
            trainer(max_epochs=3).fit(Net(), data(), data(), ckpt_path=path)


def test_save_checkpoint_in_a_fit_is_resumed_from():
    class Saves(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step in (2, 4):
                trainer.save_checkpoint("now.ckpt")
                self.weight = module.layer.weight.detach().clone()

    saves = Saves()
    run = trainer(callbacks=[saves], max_epochs=2, enable_checkpointing=False)
    run.fit(Net(), data())
    assert torch.equal(torch.load("now.ckpt")["state_dict"]["layer.weight"], saves.weight)
    later = trainer(max_epochs=2)
    later.fit(Net(), data(), ckpt_path="now.ckpt")
    assert later.global_step == 6
    assert torch.equal(later.lightning_module.layer.weight, run.lightning_module.layer.weight)


def test_secrets_are_in_no_file():
    class Many(Net):
        def __init__(self, **given):
            super().__init__()
            self.save_hyperparameters()

    _, keeps = fitted(Many(lr=1, api_key="hf_abcdefgh"))
    assert torch.load(keeps.best_model_path)["hyper_parameters"] == {"lr": 1}


@pytest.mark.parametrize(("save_last", "is_link"), [(True, False), ("link", True)])
def test_the_last_one(save_last, is_link):
    run = trainer(callbacks=[ModelCheckpoint("kept", save_last=save_last)], max_epochs=2)
    run.fit(Net(), data())
    assert Path("kept/last.ckpt").is_symlink() is is_link
    assert torch.load("kept/last.ckpt")["global_step"] == 6


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


def test_an_address_has_no_files():
    keeps = ModelCheckpoint("s3://bucket/kept")
    run = trainer(callbacks=[keeps])
    run.fit(Net(), data())
    assert keeps.dirpath == "s3://bucket/kept"
    assert Path(keeps.best_model_path).parent == Path(run.ours.folder) / "checkpoints"


def test_a_file_that_cannot_be_written_is_reported_and_training_goes_on():
    Path("kept/epoch=0-step=3.ckpt").mkdir(parents=True)
    keeps = ModelCheckpoint("kept", enable_version_counter=False)
    run = trainer(callbacks=[keeps])
    run.fit(Net(), data())
    printed = (Path(run.ours.folder) / "log.txt").read_text()
    assert "warning: step-00000003 has no file under Lightning's name" in printed
    assert Path(keeps.best_model_path) == Path(run.ours.folder).resolve() / "checkpoints" / "step-00000003"


@pytest.mark.launch
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_each_rank_reads_whole_files(strategy, tmp_path):
    script = Path(__file__).with_name("files_on_ranks.py")
    run_ranks(script, 2, strategy, "found", folder=tmp_path)
    found, same = (json.loads((tmp_path / f"found-{rank}").read_text()) for rank in range(2))
    assert found == same
    assert found["best"][0] == 8
    assert found["best"] == found["last"] == found["after"] == found["resumed"][0]
    assert found["third"][0] == 3
    assert found["best"][1]["layers.0.weight"][0] == [8, 4]
    first, second = found["continued"]
    assert first == second
    assert first[0] == 12


def test_nothing_is_saved_before_a_stage():
    with pytest.raises(PacelineError, match="no stage has begun"):
        trainer().save_checkpoint("early.ckpt")


class Objects(Net):
    def __init__(self, loss):
        super().__init__()
        self.save_hyperparameters()
        self.loss = loss


def test_an_open_file_is_read():
    _, keeps = fitted(Objects(nn.MSELoss()))
    content = torch.load(keeps.best_model_path, weights_only=False)
    content["state_dict"]["layer.bias"].fill_(3)
    written = io.BytesIO()
    torch.save(content, written)
    written.seek(0)
    loaded = Objects.load_from_checkpoint(written, weights_only=False)
    assert isinstance(loaded.loss, nn.MSELoss)
    assert loaded.layer.bias.item() == 3
    written.seek(0)
    with pytest.raises(PacelineError, match="more than tensors"):
        Objects.load_from_checkpoint(written)


def test_hooks_read_what_a_resumed_run_continues_from():
    class Reads(Callback):
        def on_load_checkpoint(self, trainer, module, checkpoint):
            self.seen = checkpoint["epoch"], sorted(checkpoint["state_dict"])

    run, keeps = fitted()
    for path in ("last", keeps.best_model_path):
        reads = Reads()
        run.fit_loop.max_epochs += 1
        later = trainer(max_epochs=3, callbacks=[reads, ModelCheckpoint()])
        later.fit(Net(), data(), data(), ckpt_path=path)
        assert reads.seen == (1, ["layer.bias", "layer.weight"])


def test_a_module_says_after_it_is_built_that_some_weights_are_skipped():
    class Skips(Net):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(3, 3)
            self.strict_loading = False

        def state_dict(self, *args, **kwargs):
            whole = super().state_dict(*args, **kwargs)
            return {name: value for name, value in whole.items() if "backbone" not in name}

    run, keeps = fitted(Skips())
    assert sorted(torch.load(keeps.best_model_path)["state_dict"]) == ["layer.bias", "layer.weight"]
    os.replace(keeps.best_model_path, "moved.ckpt")
    shutil.rmtree(run.ours.folder)
    loaded = Skips.load_from_checkpoint("moved.ckpt")
    assert torch.equal(loaded.layer.weight, run.lightning_module.layer.weight)


def test_a_constructor_that_hands_its_arguments_on_gets_them_from_a_file():
    class Base(Net):
        def __init__(self, rate):
            super().__init__()
            self.save_hyperparameters()

    class Wide(Base):
        def __init__(self, width, **more):
            super().__init__(**more)
            self.save_hyperparameters()

    run, keeps = fitted(Wide(width=3, rate=0.5))
    os.replace(keeps.best_model_path, "moved.ckpt")
    shutil.rmtree(run.ours.folder)
    assert Wide.load_from_checkpoint("moved.ckpt").hparams == {"width": 3, "rate": 0.5}
