"""A user's own training, run for one step by the doctor: what it says of scripts that are sick."""

import subprocess
import sys
import time

import pytest
from helpers.ranks import forked_python

from paceline import PacelineError
from paceline.doctor import target as module
from paceline.doctor.target import Target, run_target
from paceline.tools.rerun.one_step_trainer import OneStepRequest

pytestmark = pytest.mark.launch

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from paceline import Trainer, TrainModule

class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)
    def training_step(self, batch):
        {step}
        return self.net(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = Trainer(max_epochs=1000, strategy={strategy!r})
trainer.fit(Net(), DataLoader(TensorDataset(torch.zeros(800, 3)), 4))
open("after", "w").close()
"""


@pytest.fixture
def run(request, tmp_path, monkeypatch):
    """Runs a script; it and its ranks are forks, and under ``--soak`` interpreters."""
    soak = request.config.getoption("--soak")

    def run(text, strategy=None, words=(), devices=2, seconds=60):
        script = tmp_path / "train.py"
        script.write_text(text)
        folder = tmp_path / "place"
        folder.mkdir()
        asked = OneStepRequest(str(folder / "note"), devices, "cpu", strategy, seconds)
        with monkeypatch.context() as here:
            if not soak:
                here.setattr(sys, "executable", forked_python())
            return run_target(Target(str(script), words), asked, folder)

    return run


def script(step="pass", strategy="auto"):
    return SCRIPT.format(step=step, strategy=strategy)


def test_a_script_takes_one_step_on_the_ranks_and_ends(run, tmp_path):
    found = run(script("assert sys.argv[1:] == ['--lr', '3']"), words=("--lr", "3"))
    assert found.outcome == "ok", found
    assert found.found.startswith("1 step under ddp on 2 ranks in ")
    assert found.strategy == "its own"
    assert not (tmp_path / "after").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_script_that_raises_in_its_step(run, devices):
    found = run(script("raise ValueError('the labels are wrong')"), devices=devices)
    assert (found.check, found.outcome) == ("train.py", "FAILED")
    assert "ValueError: the labels are wrong" in found.found
    assert found.cure
    assert any("train.py" in line for line in found.details)


@pytest.mark.soak
def test_a_strategy_of_one_device_stays_on_it_unless_another_is_asked_for(run):
    found = run(script(strategy="single"))
    assert found.found.startswith("1 step under single on 1 rank ")


@pytest.mark.soak
def test_the_strategy_that_is_asked_for_replaces_the_scripts(run):
    found = run(script(strategy="single"), strategy="fsdp")
    assert found.found.startswith("1 step under fsdp on 2 ranks ")


@pytest.mark.soak
def test_a_rank_that_hangs_is_named(run):
    found = run(script("import time; time.sleep(600 * self.trainer.rank)"), seconds=60)
    assert found.outcome == "FAILED"
    assert any("rank 1 is late" in line for line in found.details), found


def test_a_script_without_a_fit(run):
    found = run("print('nothing to do')\n")
    assert (found.outcome, found.found) == ("FAILED", "the script ended without a fit")
    assert "from paceline import Trainer" in found.cure


def test_a_script_that_does_not_end(run, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_GRACE", 0.5)
    begun = tmp_path / "begun"

    class Busy(subprocess.Popen):
        """Its time does not begin before the script has, however long Python takes to start."""

        def wait(self, timeout=None):
            deadline = time.monotonic() + 60
            while not begun.exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Busy)
    text = f"import time; print('begins', flush=True); open({str(begun)!r}, 'w').close(); time.sleep(600)\n"
    found = run(text, seconds=1)
    assert found.outcome == "FAILED"
    assert found.found == "it did not end within 2 s"
    assert "  begins" in found.details


def test_a_script_that_is_not_there():
    with pytest.raises(PacelineError, match="there is no such script"):
        Target("train.py").check()


def test_the_command_of_what_is_no_script():
    request = OneStepRequest("note", 4, "cpu", "fsdp", 60)
    command = Target("vit-cifar10", ("preset=tiny", "data=digits")).command(request)
    assert command[2:] == [
        *("-m", "paceline", "fit", "vit-cifar10", "preset=tiny", "data=digits", "trainer.fast_dev_run=1"),
        *("trainer.devices=4", "trainer.strategy=fsdp", "trainer.accelerator=cpu"),
    ]
