"""Runs in an object store without a server: what is sent, what is fetched, what takes an address."""

import os
import shutil

import fsspec
import pytest
import torch
from helpers.small_net import Net, data

import paceline
from paceline import PacelineError, Trainer
from paceline.callbacks import Checkpoint
from paceline.trainer.checkpoint.files.remote_run import RemoteRun
from paceline.trainer.checkpoint.listing import find_checkpoints
from paceline.trainer.run.find import find_runs
from paceline.trainer.storage import remote as remote_module
from paceline.trainer.storage.remote import Remote, RemoteError

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
    remote.pull(to_write=True)
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


class FailsOnce(Checkpoint):
    """The first file of step 6 is not sent, the first time."""

    def on_fit_start(self, trainer):
        super().on_fit_start(trainer)
        usual, failed = Remote.send, []

        def send(remote, wanted, **options):
            if any("step-00000006" in name for name in wanted) and not failed:
                failed.append(1)
                raise RemoteError("on purpose")
            usual(remote, wanted, **options)

        self.patch.setattr(Remote, "send", send)


def test_a_checkpoint_that_was_not_sent_replaces_none(store, monkeypatch):
    FailsOnce.patch = monkeypatch
    callback = FailsOnce(every="1ep", keep=1, on_save_error="warn")
    weights = Checkpoint(every=3, weights_only=True, name="weights")
    Trainer(
        max_epochs=2, run_dir=URL, progress=False, loggers=["-tensorboard"], callbacks=[callback, weights]
    ).fit(Net(), data())
    assert "step-00000006" in manifests(store)  # sent at the end of the fit, and then step 3 was dropped
    assert "step-00000003" not in manifests(store)


@pytest.mark.parametrize("name", ["checkpoints/.staging-step-00000009", "profiles"])
def test_a_folder_vanishes_while_a_run_is_looked_through(store, name, monkeypatch):
    """As a staging folder does that another save renames."""
    _, _, run = fit(1)
    vanishing, scandir = run.folder / name, os.scandir

    def scanned(path="."):
        if os.fspath(path) == str(vanishing):
            vanishing.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scanned)
    vanishing.mkdir()
    RemoteRun.of(run.folder).send_logs()
    assert not vanishing.exists()
    vanishing.mkdir()
    assert [found.folder for found in find_runs([run.folder.parent])] == [run.folder]
    assert not vanishing.exists()
    vanishing.mkdir()
    assert find_checkpoints(run.folder.parent) == [run.latest]
    assert not vanishing.exists()


def test_looking_at_a_run_changes_nothing_that_this_machine_has_written(store):
    _, _, run = fit(2)
    rows = run.folder / "metrics.jsonl"
    rows.write_text(rows.read_text() + '{"step": 7}\n')
    assert paceline.Run(f"{URL}/net/1").rows[-1]["step"] == 7


def test_a_copy_that_was_only_fetched_is_brought_up_to_date(store, tmp_path):
    fit(2)
    shutil.rmtree(tmp_path / "cache")
    before = paceline.Run(f"{URL}/net/1").rows
    path = "/bucket/runs/net/1/metrics.jsonl"
    store.pipe(path, store.cat(path) + b'{"step": 7}\n')
    assert len(paceline.Run(f"{URL}/net/1").rows) == len(before) + 1


def test_a_cache_behind_a_symbolic_link(store, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "link"))
    _, _, run = fit(1)
    assert RemoteRun.of(run.folder.resolve()) is not None


def test_names_that_lead_out_are_refused_and_marks_of_folders_passed_over(store, monkeypatch):
    remote, names = Remote("memory://bucket/data"), ["/bucket/data", "/bucket/data/", "/bucket/data/a"]
    found = {name: {"size": 0} for name in names}
    monkeypatch.setattr(type(remote._files), "find", lambda self, root, detail: found)
    assert set(remote.names()) == {"a"}
    found["/bucket/data/../../x"] = {"size": 1}
    with pytest.raises(RemoteError, match="leads out of its folder"):
        remote.names()


def test_what_another_process_wrote_first_is_not_ours(store, monkeypatch):
    monkeypatch.setattr(remote_module, "PAUSES", (0.0,))
    remote, put = Remote(URL), type(store).pipe_file
    assert remote.write("owner", b"same", only_new=True)
    assert not remote.write("owner", b"same", only_new=True)
    assert not remote.write("owner", b"other", only_new=True)

    def answers_late(self, path, value, **options):
        put(self, path, value, **options)
        monkeypatch.setattr(type(store), "pipe_file", put)
        raise OSError("the answer was lost")

    monkeypatch.setattr(type(store), "pipe_file", answers_late)
    assert remote.write("mine", b"same", only_new=True)
    assert store.cat_file("/bucket/runs/owner") == b"same"


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
