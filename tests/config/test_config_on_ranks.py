"""A config trains the same on two ranks as on one; a script is run as it stands."""

import pytest
from helpers.ranks import run_ranks

from paceline import Run

CODE = """
import torch
from torch.utils.data import TensorDataset


def points(n: int = 32) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def accuracy(predictions, targets):
    return (predictions.argmax(1) == targets).float().mean()
"""
CONFIG = """
model: {class: torch.nn.Linear, in_features: 3, out_features: 2}
loss: cross_entropy
optimizer: {class: SGD, lr: 0.5}
metrics: {accuracy: pieces:accuracy}
data: {train: pieces:points, val: {class: pieces:points, n: 30}, batch_size: 4}
trainer: {max_epochs: 2, global_batch_size: 8, log_every: 1, accelerator: cpu, progress: false}
"""


def fit(folder, ranks, *settings):
    (folder / "pieces.py").write_text(CODE)
    (folder / "run.yaml").write_text(CONFIG)
    done = run_ranks("paceline", ranks, "fit", "run.yaml", *settings, folder=folder, seconds=120)
    run = Run(folder / "runs" / "linear" / "1")
    return run, done


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_give_the_numbers_of_one(strategy, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, _ = fit(tmp_path / "one", 1)
    two, _ = fit(tmp_path / "two", 2, "trainer.devices=2", f"trainer.strategy={strategy}")
    for name in ("train/loss", "val/loss", "val/accuracy"):
        assert two.metrics[name].values == pytest.approx(one.metrics[name].values, abs=1e-6)
    assert two.config["config"]["trainer"]["strategy"] == strategy


def test_a_script_is_run_as_python_runs_it(tmp_path):
    (tmp_path / "train.py").write_text("import sys\n\nprint(__name__, sys.argv)\nsys.exit(5)\n")
    done = run_ranks("paceline", 1, "fit", "train.py", folder=tmp_path, check=False)
    assert (done.codes, done.stdout) == ([5], "__main__ ['train.py']\n"), done.output
    refused = run_ranks("paceline", 1, "fit", "train.py", "epochs=3", folder=tmp_path, check=False)
    assert refused.codes == [1]
    assert "train.py is a script, which reads no settings of ours" in refused.stderr


def test_an_error_of_the_users_code_names_its_key_and_line(tmp_path):
    (tmp_path / "breaks.py").write_text("def part():\n    raise KeyError('mine')\n\n\npart()\n")
    done = run_ranks("paceline", 1, "fit", "breaks:Net", folder=tmp_path, check=False)
    assert done.codes == [1]
    assert f"module (the command line): KeyError: 'mine' ({tmp_path}/breaks.py:2)" in done.stderr


def test_an_error_of_a_constructor_is_shown_without_our_frames(tmp_path):
    (tmp_path / "breaks.py").write_text(
        """from paceline import TrainModule


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        raise KeyError('mine')


def data() -> list:
    return []
"""
    )
    done = run_ranks("paceline", 1, "fit", "breaks:Net", "data=breaks:data", folder=tmp_path, check=False)
    assert done.codes == [1]
    lines = done.stderr.splitlines()
    assert lines[-2:] == ["KeyError: 'mine'", "while building module, as the config says"]
    assert len(lines) <= 12, done.stderr
    assert not any("typer" in line or "config/" in line for line in lines), done.stderr


def test_a_dataset_is_built_on_the_first_rank_before_the_others(tmp_path):
    slow = (
        CODE
        + """

import os
import time
from pathlib import Path


def downloaded() -> TensorDataset:
    if int(os.environ["RANK"]) == 0:
        time.sleep(1)
        Path("downloaded").touch()
    assert Path("downloaded").exists(), "built before the first rank had finished"
    return points()
"""
    )
    (tmp_path / "pieces.py").write_text(slow)
    (tmp_path / "run.yaml").write_text(CONFIG)
    settings = [
        "data.train=pieces:downloaded",
        "data.val=null",
        "trainer.devices=2",
        "trainer.max_epochs=1",
    ]
    done = run_ranks("paceline", 2, "fit", "run.yaml", *settings, folder=tmp_path, seconds=120, check=False)
    assert done.codes == [0, 0], done.output
