"""Runs in an object store without a server: what is sent, what is fetched, what takes an address."""

from __future__ import annotations

import shutil

import fsspec
import pytest
import torch
from helpers.small_net import Net, data

import paceline
from paceline import PacelineError, Trainer
from paceline.callbacks import Checkpoint
from paceline.trainer.checkpoint.remote_run import RemoteRun
from paceline.trainer.storage import remote as remote_module
from paceline.trainer.storage.remote import Remote

URL = "memory://bucket/runs"


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    found = fsspec.filesystem("memory")
    yield found
    if found.exists("/bucket"):
        found.rm("/bucket", recursive=True)


def fit(epochs, resume=None, callbacks=(), **settings):
    trainer = Trainer(
        max_epochs=epochs, run_dir=URL, progress=False, loggers=["-tensorboard", "-curves"],
        callbacks=[Checkpoint(keep=2), *callbacks], **settings,
    )  # fmt: skip
    module = Net()
    return trainer, module, trainer.fit(module, data(), resume=resume)


def manifests(store):
    return sorted(path.split("/")[-2] for path in store.find("/bucket") if path.endswith("manifest.json"))


def test_a_run_is_sent_and_resumed_with_an_empty_cache(store, tmp_path):
    _, _, run = fit(3)
    assert manifests(store) == ["step-00000006", "step-00000009"]
    assert run.folder == tmp_path / "cache" / "memory" / "bucket" / "runs" / "net" / "1"
    shutil.rmtree(tmp_path / "cache")
    _, module, run = fit(4, resume="auto")
    assert run.folder.name == "1"
    assert manifests(store) == ["step-00000009", "step-00000012"]
    expected = Net()
    Trainer(max_epochs=4, run_dir=None, progress=False).fit(expected, data())
    assert torch.equal(module.net.weight, expected.net.weight)


def test_what_takes_an_address(store, tmp_path):
    trainer, module, _ = fit(2)
    shutil.rmtree(tmp_path / "cache")
    assert paceline.Run(f"{URL}/net/1").latest.name == "step-00000006"
    checkpoint = f"{URL}/net/1/checkpoints/step-00000003"
    assert not torch.equal(Net.load_from_checkpoint(checkpoint).net.weight, module.net.weight)
    assert torch.equal(Net.load_from_checkpoint(f"{URL}/net/1").net.weight, module.net.weight)
    Trainer(run_dir=None, progress=False).validate(Net(), data(), weights=f"{URL}/net/1")
    with pytest.raises(PacelineError, match="takes a path on this machine"):
        trainer.export("memory://bucket/exported")


def test_a_checkpoint_that_replaces_another_is_sent_beside_it(store):
    _, _, run = fit(2)
    remote = RemoteRun.of(run.folder)
    checkpoint = run.latest
    place = remote.place_of(checkpoint)
    assert place == "step-00000006.1"
    remote.send_files(
        checkpoint, place, [p.name for p in checkpoint.iterdir() if p.name != "manifest.json"]
    )
    assert "step-00000006" in manifests(store)  # until the new one is complete
    remote.commit(checkpoint, place)
    assert manifests(store) == ["step-00000003", "step-00000006.1"]
    shutil.rmtree(checkpoint)
    remote.pull()
    remote.complete(checkpoint)
    assert run.latest == checkpoint
    remote.drop("step-00000006")
    assert manifests(store) == ["step-00000003"]


def test_the_copy_of_another_run_is_replaced(store, tmp_path):
    fit(2)
    store.rm("/bucket", recursive=True)  # the user has deleted it
    _, _, run = fit(1, resume="auto")
    assert (run.folder.name, run.latest.name) == ("1", "step-00000003")
    assert manifests(store) == ["step-00000003"]


def test_a_fit_that_fails_before_its_first_step_leaves_nothing(store):
    class Fails(Net):
        def training_step(self, batch):
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        Trainer(max_epochs=1, run_dir=URL, progress=False).fit(Fails(), data())
    assert store.find("/bucket") == []


def test_failures_are_tried_again_and_counted(store, monkeypatch):
    monkeypatch.setattr(remote_module, "PAUSES", (0.0, 0.0, 0.0))
    remote, calls = Remote(URL), []

    def fails(path, detail):
        calls.append(path)
        raise OSError("https://host/object?X-Amz-Signature=abc refused")

    monkeypatch.setattr(type(remote._files), "find", lambda self, path, detail: fails(path, detail))
    with pytest.raises(PacelineError, match="listing failed in the object store") as caught:
        remote.names()
    assert len(calls) == 4
    assert "abc" not in str(caught.value)
