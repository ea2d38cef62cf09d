"""EIO and ESTALE, as a network disk gives them for a moment: tried again, then raised, never damage."""

import builtins
import errno
import io
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from helpers.checkpoints import stored_tensors
from helpers.small_net import Net
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer
from paceline.callbacks import Checkpoint
from paceline.common import retries
from paceline.trainer.checkpoint.files import commit
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify

LISTS = "scandir" if sys.version_info >= (3, 13) else "listdir"  # what Path.iterdir calls


def fit(folder, max_epochs=1, background=False, **options):
    torch.manual_seed(1)
    data = DataLoader(TensorDataset(torch.arange(24.0).reshape(8, 3)), 4)
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": folder, "name": "n"}
    checkpoint = Checkpoint(background=background)
    return Trainer(max_epochs=max_epochs, callbacks=checkpoint, **settings).fit(Net(), data, **options)


class Disk:
    """Counts the operations on files below ``checkpoints``, and lets some of them fail.

    Args:
        fails: Given an operation's kind, its number from 1 and its path, whether it fails.
        number: The system's error number.
    """

    def __init__(self, fails=lambda kind, number, path: False, number=errno.EIO):
        self.fails, self.error, self.journal = fails, number, []

    def meet(self, kind, path):
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        if "checkpoints" in Path(path).parts:
            self.journal.append(f"{kind} {path}")
            if self.fails(kind, len(self.journal), str(path)):
                raise OSError(self.error, os.strerror(self.error), str(path))

    @contextmanager
    def mounted(self, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(retries, "PAUSES", (0.0,) * len(retries.PAUSES))
            for owner, name in [
                *((os, name) for name in ("stat", "mkdir", "rename", "replace", "fsync", LISTS)),
                (io, "open"),
                (safetensors, "safe_open"),
                (safetensors.torch, "save_file"),
            ]:
                patch.setattr(owner, name, self.watched(name, getattr(owner, name)))
            patch.setattr(builtins, "open", io.open)
            yield self

    def watched(self, name, original):
        def call(*args, **named):
            self.meet(name, args[1] if name == "save_file" else named.get("filename", args and args[0]))
            return original(*args, **named)

        return call


def every_third(request, journal):
    """Numbers of operations: each of them under ``--soak``."""
    every = 1 if request.config.getoption("--soak") else 3
    return range(1, len(journal) + 1, every)


def once(number):
    return lambda kind, found, path: found == number


@pytest.fixture
def made(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("made")).folder


def damaged(folder):
    return list(Path(folder).rglob("*.damaged*"))


@pytest.mark.fault(35)
@pytest.mark.parametrize("background", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_save_survives_one_error_at_any_operation(background, tmp_path, monkeypatch):
    with Disk().mounted(monkeypatch) as disk:
        run = fit(tmp_path / "whole", background=background)
    whole = stored_tensors(run.latest)
    kinds = {line.split()[0] for line in disk.journal}
    assert kinds == {"stat", "mkdir", "rename", "replace", "fsync", LISTS, "open", "save_file"}
    for number in range(1, len(disk.journal) + 1):
        error = (errno.EIO, errno.ESTALE)[number % 2]
        with Disk(once(number), error).mounted(monkeypatch) as failing:
            run = fit(tmp_path / str(number), background=background)
        place = f"{number}: {failing.journal[number - 1]}"
        found = stored_tensors(run.latest)
        assert all(torch.equal(found[name], value) for name, value in whole.items()), place
        assert [p.name for p in run.latest.parent.glob(".staging*")] == [], place


@pytest.mark.fault(35)
def test_a_resume_survives_one_error_at_any_operation(made, tmp_path, monkeypatch, request):
    for name in ("first", "whole"):  # the first one imports more
        shutil.copytree(made, tmp_path / name / "n/1")
        with Disk().mounted(monkeypatch) as disk:
            run = fit(tmp_path / name, 2, resume="auto")
    whole = stored_tensors(run.latest)
    assert {"stat", "open", LISTS, "safe_open"} <= {line.split()[0] for line in disk.journal}
    for number in every_third(request, disk.journal):
        shutil.copytree(made, tmp_path / f"{number}/n/1")
        error = (errno.EIO, errno.ESTALE)[number % 2]
        with Disk(once(number), error).mounted(monkeypatch) as failing:
            run = fit(tmp_path / str(number), 2, resume="auto")
        place = f"{number}: {failing.journal[number - 1]}"
        found = stored_tensors(run.latest)
        assert all(torch.equal(found[name], value) for name, value in whole.items()), place
        assert run.folder.name == "1", place
        assert damaged(tmp_path) == [], place


READS = ["manifest.json", "state.json", "model-00001.safetensors", "optim-00001.safetensors"]


@pytest.mark.fault(35)
@pytest.mark.parametrize("resume", ["auto", "latest"])
@pytest.mark.parametrize("name", READS)
def test_a_file_that_stays_unreadable_ends_the_start_and_the_checkpoint_stays(
    name, resume, made, tmp_path, monkeypatch
):
    shutil.copytree(made, tmp_path / "n/1")

    def fails(kind, number, path):
        return kind == "open" and path.endswith(name)

    with (
        Disk(fails).mounted(monkeypatch) as disk,
        pytest.raises(files.UnreadableError, match="Input/output error") as raised,
    ):
        fit(tmp_path, 2, resume=resume)
    assert name in str(raised.value)
    assert "left as it is" in str(raised.value)
    tries = [line for line in disk.journal if line.startswith("open") and line.endswith(name)]
    assert len(tries) == 1 + len(retries.PAUSES)
    assert damaged(tmp_path) == []
    assert len(files.finished(tmp_path / "n/1/checkpoints")) == 1
    verify(files.finished(tmp_path / "n/1/checkpoints")[0])


@pytest.mark.fault(35)
def test_an_error_that_is_not_transient_is_raised_at_once_and_is_no_damage(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "n/1")

    def fails(kind, number, path):
        return kind == "open" and path.endswith("state.json")

    with (
        Disk(fails, errno.EACCES).mounted(monkeypatch) as disk,
        pytest.raises(files.UnreadableError, match="Permission denied"),
    ):
        fit(tmp_path, 2, resume="auto")
    assert sum(line.startswith("open") and line.endswith("state.json") for line in disk.journal) == 1
    assert damaged(tmp_path) == []


@pytest.mark.fault(35)
@pytest.mark.parametrize("kind", ["mkdir", "save_file", "fsync", "rename"])
def test_a_save_whose_disk_stays_away_ends_with_the_error(kind, tmp_path, monkeypatch):
    def fails(found, number, path):
        return found == kind and "step-" in path

    with (
        Disk(fails).mounted(monkeypatch),
        pytest.raises(PacelineError, match="Input/output error") as raised,
    ):
        fit(tmp_path)
    assert "saving the checkpoint failed" in str(raised.value)
    assert files.finished(tmp_path / "n/1/checkpoints") == []
    assert list(tmp_path.rglob(".staging-step*")) == []


@pytest.mark.fault(35)
def test_one_that_cannot_take_the_place_of_another_leaves_it_there(tmp_path, monkeypatch):
    target = tmp_path / "checkpoints/step-00000001"
    commit.begin(target)
    commit.commit(target, {"number": 1})
    commit.begin(target)

    def fails(kind, number, path):
        return kind == "rename" and ".staging-" in path

    with Disk(fails).mounted(monkeypatch), pytest.raises(OSError, match="Input/output error"):
        commit.commit(target, {"number": 2})
    assert files.read_manifest(target)["number"] == 1
    assert files.finished(target.parent) == [target]


def test_the_pauses_grow(monkeypatch):
    slept, calls = [], []
    monkeypatch.setattr(retries.time, "sleep", slept.append)

    def fails():
        calls.append(1)
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(OSError, match="Stale"):
        retries.retried(fails)
    assert len(calls) == 1 + len(slept)
    assert slept == sorted(set(slept))
    assert sum(slept) < 5


def test_an_error_that_safetensors_words_is_recognised(monkeypatch):
    monkeypatch.setattr(retries, "PAUSES", (0.0,))
    answers = [safetensors.SafetensorError("Error while serializing: I/O error: x (os error 116)"), None]

    def fails():
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return "read"

    assert retries.retried(fails) == "read"
