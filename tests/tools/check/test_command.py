"""``paceline check`` of scripts, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from helpers.environment import clean_environment

from paceline.tools.rerun.check_request import CheckRequest

pytestmark = pytest.mark.launch

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from paceline import Trainer, TrainModule
from paceline.callbacks import EarlyStopping

class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    def training_step(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch):
        self.log("loss", F.cross_entropy(self.net(batch[0]), batch[1]))
    test_step = validation_step
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

torch.manual_seed(0)
x = torch.randn(240, 6)
rows = TensorDataset(x, x[:, :3].argmax(1))
train = DataLoader(torch.utils.data.Subset(rows, range(160)), 16, shuffle=True)
held = DataLoader(torch.utils.data.Subset(rows, range(160, 240)), 40)
trainer = Trainer(max_epochs=3, callbacks=EarlyStopping("val/loss"), run_dir="runs")
run = trainer.fit(Net(), train, held)
print("loss", run.metrics["val/loss"])
"""
TEST = "trainer.test(trainer.module, held, weights='best')\n"
LIGHTNING = """
import torch
from paceline.compat import lightning as L

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 1)
    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.net(batch), batch[:, 0])
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

loader = torch.utils.data.DataLoader(torch.randn(96, 6), 16, shuffle=True)
L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False).fit(Net(), loader)
"""


def checked(folder, text, code):
    """The findings of a script by name, which leaves nothing in its folder."""
    (folder / "script.py").write_text(text)
    command = [sys.executable, "-m", "paceline", "check", "script.py", "--json"]
    options = {"cwd": folder, "env": clean_environment(), "capture_output": True, "timeout": 240}
    ended = subprocess.run(command, text=True, check=False, **options)
    assert ended.returncode == code, ended.stderr
    assert [one.name for one in folder.iterdir()] == ["script.py"]
    found = json.loads(ended.stdout)
    assert found["not_looked_at"] == {}
    assert found["is_whole_run"]
    return {one["name"]: one["evidence"] for one in found["findings"]}


def test_what_a_script_does_after_its_fit_is_watched_too(tmp_path):
    assert checked(tmp_path, SCRIPT, 0) == {}
    found = checked(tmp_path, SCRIPT + TEST, 1)
    assert list(found) == ["selected-on-test"]
    assert "80 of 80 samples of the test are those of validation" in found["selected-on-test"]


def test_a_lightning_program_is_checked_and_its_copies_are_tried_out(tmp_path):
    found = checked(tmp_path, LIGHTNING, 1)
    assert list(found) == ["broadcast-loss"]


def test_a_script_that_goes_on_for_long_is_ended(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT + "import time\ntime.sleep(3600)\n")
    request = CheckRequest(str(tmp_path / "report.json"), 20.0, later_seconds=1.0)
    begun = time.monotonic()
    environment = clean_environment() | request.variables()
    command = [sys.executable, "script.py"]
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "timeout": 240}
    assert subprocess.run(command, check=False, **options).returncode == 0
    assert time.monotonic() - begun < 200
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == []
