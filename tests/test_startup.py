"""What may not be loaded by an import, by the command line, and by a plain fit."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    *("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.distributed.fsdp"),
    *("torch.distributed.checkpoint", "torch.distributed.pipelining", "torch.onnx", "sympy"),
    *("deepspeed", "matplotlib", "PIL", "pandas", "sklearn", "scipy", "torchmetrics", "torchao"),
    *("transformers", "datasets", "lightning", "accelerate", "peft", "ray", "wandb", "mlflow"),
    *("IPython", "optuna", "onnx", "rich", "typer", "selenium", "pytest", "s3fs", "tqdm.auto"),
)
AT_FIRST_USE = ("pydantic", "psutil", "tensorboard", "safetensors", "yaml", "numpy.testing")
BY_HAND = """
net = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(8, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for (x,) in torch.utils.data.DataLoader(data, 4, shuffle=True):
    net(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NAMES = """
import torch
from paceline import Trainer, TrainModule, seed_everything
import paceline.callbacks, paceline.strategies
"""
PLAIN_FIT = """
class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch):
        return self.net(batch[0]).mean()
    def validation_step(self, batch):
        self.log("value", self.net(batch[0]).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4)), 4, shuffle=True)
with open("printed", "w") as file:
    sys.stdout, stdout = file, sys.stdout
    Trainer(accelerator="cpu", max_epochs=2, name="plain").fit(Net(), loader, loader)
    sys.stdout = stdout
"""


def loaded_by(*parts: str, folder=None) -> list[set[str]]:
    """What is loaded after each of these parts of a script."""
    script = "import sys\n" + "".join(f"{part}\nprint(*sorted(sys.modules))\n" for part in parts)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=folder
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plain")


@pytest.fixture(scope="module")
def ours(folder):
    """What is loaded after ``import paceline``, after the names that scripts import, and after a fit."""
    return loaded_by("import paceline", NAMES, PLAIN_FIT, folder=folder)


@pytest.fixture(scope="module")
def theirs():
    """What is loaded after ``import torch``, and after a loop."""
    return loaded_by("import torch", BY_HAND)


def test_an_import_loads_nothing_heavy(ours, theirs):
    """It is to cost what ``import torch`` costs."""
    package, names, _ = ours
    assert not package & {"torch", "numpy"}
    assert "paceline.trainer.trainer" in names
    assert sorted((names - theirs[0]) & {*HEAVY, *AT_FIRST_USE}) == []


def test_a_plain_fit_loads_nothing_heavy_that_a_loop_of_torch_does_not_load(ours, theirs, folder):
    """torch's optimizers load dynamo and what it needs; matplotlib draws in a process of its own."""
    assert sorted((ours[2] - theirs[1]) & set(HEAVY)) == []
    run = folder / "runs" / "plain" / "1"
    assert {"metrics.jsonl", "tb", "checkpoints"} <= {path.name for path in run.iterdir()}
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG"), (run / "log.txt").read_text()


COMMAND = """
from paceline.__main__ import app
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()):
    app([{!r}], standalone_mode=False)
"""


def test_the_command_line_answers_and_the_picture_is_drawn_without_torch():
    drawing = "import paceline.callbacks.pictures.curves, paceline.callbacks.pictures.picture"
    help_, plugins, drawn = loaded_by(COMMAND.format("--help"), COMMAND.format("plugins"), drawing)
    assert not help_ & {"torch", "numpy", "pydantic"}
    assert not plugins & {"torch", "numpy"}  # typer has pydantic
    assert "paceline.callbacks.pictures.picture" in drawn
    assert "torch" not in drawn
