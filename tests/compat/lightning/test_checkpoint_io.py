"""A ``CheckpointIO`` of the user writes, reads and removes the ``.ckpt`` files."""

import pickle
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import paceline.compat.lightning as L
from paceline import PacelineError
from paceline.compat.lightning.pytorch.callbacks import ModelCheckpoint
from paceline.compat.lightning.pytorch.demos.boring_classes import BoringModel
from paceline.compat.lightning.pytorch.plugins import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO

pytestmark = pytest.mark.fit


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Noted(TorchCheckpointIO):
    def __init__(self):
        super().__init__()
        self.calls = []

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.calls.append(("save", Path(path).name, storage_options))
        super().save_checkpoint(checkpoint | {"note": "mine"}, path, storage_options)

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        self.calls.append(("load", Path(path).name))
        return super().load_checkpoint(path, map_location, weights_only)

    def remove_checkpoint(self, path):
        self.calls.append(("remove", Path(path).name))
        super().remove_checkpoint(path)

    def teardown(self):
        self.calls.append(("teardown",))


class Pickled(CheckpointIO):
    """Its own form."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        Path(path).write_bytes(b"form" + pickle.dumps(checkpoint))

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        return pickle.loads(Path(path).read_bytes()[4:])

    def remove_checkpoint(self, path):
        Path(path).unlink()


class Net(BoringModel):
    def on_load_checkpoint(self, checkpoint):
        self.note = checkpoint.get("note")


def trainer(plugin, epochs=2, **options):
    keeps = ModelCheckpoint("files", filename="{epoch}", **{"save_last": True} | options)
    return L.Trainer(
        max_epochs=epochs,
        limit_train_batches=3,
        limit_val_batches=1,
        callbacks=[keeps],
        plugins=[plugin],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )


def data():
    torch.manual_seed(0)
    return DataLoader(torch.randn(3, 32))


def weights(plugin=None, path=None, epochs=2):
    torch.manual_seed(1)
    module, run = Net(), trainer(plugin, epochs)
    run.fit(module, data(), ckpt_path=path)
    return module, run


@pytest.mark.parametrize("wrapped", [False, True])
def test_it_writes_reads_and_removes(wrapped):
    plugin = Noted()
    _, run = weights(AsyncCheckpointIO(plugin) if wrapped else plugin)
    first = [("save", "epoch=0.ckpt", None), ("save", "last.ckpt", None)]
    second = [("save", "epoch=1.ckpt", None), ("remove", "epoch=0.ckpt"), ("save", "last.ckpt", None)]
    assert plugin.calls == [*first, *second, ("teardown",)]
    assert torch.load("files/epoch=1.ckpt")["note"] == "mine"
    assert not Path("files/epoch=0.ckpt").exists()
    run.save_checkpoint("own.ckpt", storage_options={"a": 1})
    assert plugin.calls[-1] == ("save", "own.ckpt", {"a": 1})
    plugin.calls.clear()
    tested = Net()
    trainer(plugin).test(tested, data(), ckpt_path="files/epoch=1.ckpt")
    assert ("load", "epoch=1.ckpt") in plugin.calls
    assert tested.note == "mine"


def test_a_run_resumes_exactly_and_it_reads_the_file():
    whole, _ = weights(Noted(), epochs=3)
    weights(Noted(), epochs=2)
    plugin = Noted()
    resumed, run = weights(plugin, "files/epoch=1.ckpt", epochs=3)
    assert plugin.calls[0] == ("load", "epoch=1.ckpt")
    assert resumed.note == "mine"
    assert torch.equal(whole.layer.weight, resumed.layer.weight)
    assert run.global_step == 9


def test_a_form_of_its_own():
    whole, _ = weights(Pickled(), epochs=3)
    half, _ = weights(Pickled(), epochs=2)
    path = max(Path("files").glob("epoch=1*"), key=lambda one: one.stat().st_mtime)
    with pytest.raises(PacelineError, match="what Pickled wrote names none"):
        weights(Pickled(), path, epochs=3)
    tested = Net()
    trainer(Pickled()).test(tested, data(), ckpt_path=path)
    assert torch.equal(tested.layer.weight, half.layer.weight)
    resumed, _ = weights(Pickled(), "last", epochs=3)
    assert torch.equal(whole.layer.weight, resumed.layer.weight)


def test_its_errors_end_the_run():
    class Full(Noted):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            raise OSError("the store is full")

    with pytest.raises(OSError, match="the store is full"):
        weights(Full())
