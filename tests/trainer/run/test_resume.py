"""Where a run that is resumed writes: "auto" and "latest" in its own folder, all else in a new one."""

import hashlib
from pathlib import Path

import pytest
import torch
from helpers.pairwise import soaked
from helpers.small_net import Net, data

from paceline import Trainer
from paceline.callbacks import Checkpoint


def fit(folder, max_epochs=2, name="n", keep=1, **options):
    checkpoint = Checkpoint(monitor="val/loss", keep=keep)
    settings = {"accelerator": "cpu", "progress": False, "loggers": True, "name": name}
    trainer = Trainer(run_dir=folder, max_epochs=max_epochs, callbacks=checkpoint, **settings)
    return trainer.fit(Net(), data(), data(), **options)


def content(folder):
    """Every file below it, to the byte."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def resumes_of(run):
    return {
        "path": run.latest,
        "string": str(run.latest),
        "run": run.folder,
        "best": "best",
    }


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    ("kind", "name"),
    soaked(
        [("path", "n"), ("path", "other"), ("string", "n"), ("run", "n"), ("best", "n")],
        [("path", "other"), ("run", "n"), ("best", "n")],
    ),
)
def test_a_path_and_best_begin_a_new_run_and_leave_the_source_as_it_is(kind, name, tmp_path):
    whole = fit(tmp_path / "whole", 4)
    source = fit(tmp_path / "runs")
    before, latest = content(source.folder), source.latest
    if kind == "best":
        assert source.best == source.latest
    run = fit(tmp_path / "runs", 4, name=name, resume=resumes_of(source)[kind])
    assert content(source.folder) == before
    assert latest.is_dir()
    assert run.folder == tmp_path / "runs" / name / ("2" if name == "n" else "1")
    assert run.config["parent"] == str(latest)
    assert [row["step"] for row in run.rows if "train/loss_epoch" in row] == [9, 12]
    ours, theirs = (Net.load_from_checkpoint(r.latest).state_dict() for r in (run, whole))
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    assert run.latest.parent.parent == run.folder


@pytest.mark.fault(36)
@pytest.mark.parametrize("resume", ["auto", "latest"])
def test_auto_and_latest_continue_in_the_folder_of_the_run(resume, tmp_path):
    source = fit(tmp_path)
    run = fit(tmp_path, 4, resume=resume)
    assert run.folder == source.folder
    assert [row["step"] for row in run.rows if "train/loss_epoch" in row] == [3, 6, 9, 12]
    assert "parent" not in run.config


@pytest.mark.fault(36)
def test_a_run_that_began_from_a_path_can_be_continued_itself(tmp_path):
    source = fit(tmp_path)
    second = fit(tmp_path, 3, resume=source.latest)
    third = fit(tmp_path, 4, resume="latest")
    assert third.folder == second.folder == tmp_path / "n/2"


@pytest.mark.fault(36)
def test_a_source_that_another_process_has_open_can_be_read(tmp_path):
    """Nothing is written there, so the lock does not matter."""
    from paceline.trainer.run.lock import FolderLock

    source = fit(tmp_path)
    lock = FolderLock()
    lock.take(source.folder)
    try:
        assert fit(tmp_path, 3, resume=source.latest).folder == tmp_path / "n/2"
    finally:
        lock.release()


@pytest.mark.fault(43)
@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("resume", soaked([None, "auto"], ["auto"]))
def test_a_relative_folder_is_the_one_of_the_start_wherever_the_run_goes(resume, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    class Wanders(Net):
        def training_step(self, batch):
            if self.trainer.global_step == 1:
                monkeypatch.chdir(elsewhere)
            return super().training_step(batch)

    settings = {"accelerator": "cpu", "progress": False, "name": "n", "run_dir": "runs"}
    trainer = Trainer(max_epochs=2, callbacks=Checkpoint(1, keep=None), **settings)
    run = trainer.fit(Wanders(), data(), data(), resume=resume)
    assert list(elsewhere.iterdir()) == []
    assert run.folder == tmp_path / "runs/n/1"
    assert len(run.checkpoints) == 6
    assert len(run.rows) > 2
    assert (run.folder / "curves.png").exists()
    monkeypatch.chdir(elsewhere)
    again = trainer.fit(Net(), data(), data())  # the same Trainer, made in the folder before
    assert again.folder == tmp_path / "runs/n/2"
    assert list(elsewhere.iterdir()) == []


def test_a_tilde_is_the_home_folder_wherever_a_path_is_taken(tmp_path, monkeypatch):
    from paceline import Run

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run = fit("~/runs")
    assert run.folder == tmp_path / "runs/n/1"
    assert Run("~/runs/n/1").latest == run.latest
    latest = "~/" + str(run.latest.relative_to(tmp_path))
    Net.load_from_checkpoint(latest)
    settings = {"accelerator": "cpu", "progress": False, "run_dir": None}
    trainer = Trainer(max_epochs=3, **settings)
    trainer.fit(Net(), data(), resume=latest)
    trainer.validate(trainer.module, data(), weights=latest)
    trainer.export("~/exported")

    class Saves(Net):
        def on_step_boundary(self, trainer):
            trainer.save_checkpoint("~/saved")
            trainer.stop("enough")

        def predict_step(self, batch):
            return self.net(batch[0])

    Trainer(max_epochs=1, **settings).fit(Saves(), data())
    Trainer(**settings).predict(Saves(), data(), out="~/predicted")
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["exported", "predicted", "runs", "saved"]


def test_the_command_line_takes_a_tilde_too(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from paceline.__main__ import app

    monkeypatch.setenv("HOME", str(tmp_path))
    run = fit(tmp_path / "runs")
    for command in (
        ["checkpoint", "ls", "~/runs"],
        ["checkpoint", "verify", "~/runs/n/1"],
        ["checkpoint", "show", "~/runs/n/1"],
        ["checkpoint", "consolidate", "~/runs/n/1", "~/one/step-00000006"],
        ["export", "~/runs/n/1", "~/out"],
    ):
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 0, (command, found.output, found.exception)
    assert {"one", "out", "runs"} == {path.name for path in Path(tmp_path).iterdir()}
    assert run.folder.is_dir()
