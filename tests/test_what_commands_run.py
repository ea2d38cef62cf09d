"""What each command imports, calls and starts is what its page says, on a run whose files name a trap."""

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import typer

import paceline
from paceline import PacelineError
from paceline.__main__ import app

PAGE = Path(paceline.__file__).parent / "docs" / "reference" / "commands.md"
COLUMNS = ("imports", "calls", "starts")
TRAP = """
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from paceline import TrainModule
from paceline.callbacks import Callback

Path("imports").touch()


class Watch(Callback):
    def __init__(self):
        Path("calls").touch()


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        Path("calls").touch()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch):
        return self.net(batch).square().mean()

    validation_step = test_step = predict_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> tuple[DataLoader, ...]:
    Path("calls").touch()
    return tuple(DataLoader(torch.ones(4, 3), 2) for _ in range(4))
"""
RECIPE = """
from pathlib import Path

from paceline.config import RunConfig

Path("imports").touch()


class Config(RunConfig):
    size: int = 3


def build(config):
    Path("calls").touch()
"""
RUN, OTHER = "runs/net/1", "runs/net/2"
COMMANDS = {
    "fit": [["fit", RUN], ["fit", "script.py"]],
    "validate": [["validate", RUN]],
    "test": [["test", RUN]],
    "predict": [["predict", RUN, "--out", "out"]],
    "estimate": [["estimate", RUN, "--devices", "1", "--memory", "1GiB"]],
    "config show": [["config", "show", RUN]],
    "config check": [["config", "check", RUN]],
    "config schema": [["config", "schema", RUN], ["config", "schema", "recipe.yaml"]],
    "config init": [["config", "init", "new.yaml", "--yes"]],
    "recipes list": [["recipes", "list"]],
    "recipes show": [["recipes", "show", "recipe.py"]],
    "recipes copy": [["recipes", "copy", "digits", "copied.py"]],
    "checkpoint ls": [["checkpoint", "ls", RUN]],
    "checkpoint show": [["checkpoint", "show", RUN]],
    "checkpoint verify": [["checkpoint", "verify", RUN]],
    "checkpoint consolidate": [["checkpoint", "consolidate", RUN, "consolidated"]],
    "export": [["export", RUN, "exported"], ["export", RUN, "program", "--format", "torch"]],
    "chat": [["chat", RUN]],
    "plot": [["plot", RUN, OTHER, "--out", "plot.png"]],
    "report": [["report", RUN, OTHER]],
    "plot-lr": [["plot-lr", "cosine"]],
    "diff": [["diff", RUN, OTHER], ["diff", RUN, OTHER, "--replay"]],
    "replay": [["replay", RUN, "--step", "1"]],
    "launch": [["launch", "script.py"]],
    "check": [["check", "script.py"], ["check", RUN]],
    "doctor": [["doctor", "script.py", "--strategy", "single", "--devices", "1"]],
    "migrate": [["migrate", "script.py"]],
    "env": [["env"]],
    "plugins": [["plugins"]],
    "skills": [["skills"], ["skills", "port-a-program"]],
    "explain": [["explain"], ["explain", "no-data"]],
}


def rows():
    """By command, what the page says in each column."""
    found = {}
    part = PAGE.read_text().partition("## What a command imports")[2].partition("\n## ")[0]
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            found |= {
                name: dict(zip(COLUMNS, cells[1:], strict=True)) for name in re.findall("`(.+?)`", cells[0])
            }
    return found


def names(group, above=""):
    """The commands of the command line, with those of its groups."""
    for name, one in group.commands.items():
        members = getattr(one, "commands", None)
        yield from names(one, f"{name} ") if members else [f"{above}{name}"]


def test_the_page_has_every_command():
    assert set(names(typer.main.get_command(app))) == set(rows()) == set(COMMANDS)


class Started(BaseException):
    """A program would have been started."""


def run(words):
    is_refused = (PacelineError,) if words[0] == "chat" else ()  # the run has no language model
    # `launch` sets variables for its ranks, in a process that does nothing else
    with mock.patch.dict(os.environ), contextlib.suppress(SystemExit, Started, *is_refused):
        typer.main.get_command(app)(words, standalone_mode=False)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A folder with two runs, each of which names a trap in every place."""
    folder = tmp_path_factory.mktemp("planted")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(folder), *sys.path])
        (folder / "trap.py").write_text(TRAP)
        (folder / "recipe.py").write_text(RECIPE)
        (folder / "recipe.yaml").write_text("recipe: recipe.py\n")
        (folder / "script.py").write_text("from pathlib import Path\n\nPath('starts').touch()\n")
        settings = [
            "data=trap:data",
            "callbacks=[trap:Watch]",
            "trainer.max_steps=2",
            "trainer.progress=false",
        ]
        for lr in range(2):
            run(["fit", "trap:Net", *settings, "trainer.accelerator=cpu", f"trainer.seed={lr}"])
        for number in (RUN, OTHER):
            file = folder / number / "env.json"
            there = {"program": ["script.py"], "folder": str(folder)}
            file.write_text(json.dumps(json.loads(file.read_text()) | there))
    return folder


@pytest.mark.fault(53)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.filterwarnings("ignore")
def test_a_command_imports_calls_and_starts_what_its_page_says(command, planted, tmp_path, monkeypatch):
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["paceline"])

    def started(*words, **options):
        if any(name in f"{words} {options.get('args')}" for name in (sys.executable, "script.py")):
            (tmp_path / "starts").touch()
            raise Started

    popen = subprocess.Popen.__init__

    def opened(self, *words, **options):
        started(*words, **options)
        popen(self, *words, **options)

    monkeypatch.setattr(os, "execve", started)
    monkeypatch.setattr(os, "execv", started)
    monkeypatch.setattr(subprocess.Popen, "__init__", opened)
    for mark in COLUMNS:
        (tmp_path / mark).unlink(missing_ok=True)
    for words in COMMANDS[command]:
        for name in ("trap", "recipe"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        run(words)
    said = rows()[command]
    seen = {mark for mark in COLUMNS if (tmp_path / mark).exists()}
    assert seen == {mark for mark, cell in said.items() if cell != "no"}


def test_a_folder_of_others_is_not_built_to_look_at_it(planted, tmp_path, monkeypatch):
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    for mark in COLUMNS:
        (tmp_path / mark).unlink(missing_ok=True)
    for target in (RUN, f"{RUN}/config.yaml"):
        monkeypatch.delitem(sys.modules, "trap", raising=False)
        with pytest.raises(paceline.PacelineError, match="that a run's folder names: it was written on"):
            run(["estimate", target, "--devices", "1", "--memory", "1GiB"])
        assert not any((tmp_path / mark).exists() for mark in COLUMNS)
    run(["estimate", RUN, "--devices", "1", "--memory", "1GiB", "--trust"])
    assert (tmp_path / "calls").exists()
