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
    *("IPython", "rich", "typer", "selenium", "pytest", "s3fs", "tqdm.auto"),
)
AT_FIRST_USE = ("pydantic", "psutil", "tensorboard", "safetensors", "yaml", "numpy.testing")
BY_HAND = """
import torch
net = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(8, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for (x,) in torch.utils.data.DataLoader(data, 4, shuffle=True):
    net(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PLAIN_FIT = """
import torch
from paceline import Trainer, TrainModule

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


def loaded_by(code: str, folder=None) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=folder
    )
    return set(done.stdout.split())


def test_an_import_loads_nothing_heavy():
    """It is to cost what ``import torch`` costs."""
    assert not loaded_by("import paceline") & {"torch", "numpy"}
    names = "import torch\nfrom paceline import Trainer, TrainModule, seed_everything\n"
    ours = loaded_by(names + "import paceline.callbacks, paceline.strategies")
    assert "paceline.trainer.trainer" in ours
    assert sorted((ours - loaded_by("import torch")) & {*HEAVY, *AT_FIRST_USE}) == []


def test_a_plain_fit_loads_nothing_heavy_that_a_loop_of_torch_does_not_load(tmp_path):
    """torch's optimizers load dynamo and what it needs; matplotlib draws in a process of its own."""
    after = loaded_by(PLAIN_FIT, tmp_path)
    assert sorted((after - loaded_by(BY_HAND)) & set(HEAVY)) == []
    run = tmp_path / "runs" / "plain" / "1"
    assert {"metrics.jsonl", "tb", "checkpoints"} <= {path.name for path in run.iterdir()}
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG"), (run / "log.txt").read_text()


def test_the_picture_is_drawn_without_torch(tmp_path):
    assert "torch" not in loaded_by("import paceline.callbacks.curves, paceline.callbacks.picture")


@pytest.mark.parametrize(
    ("argument", "without"),
    [("--help", {"torch", "numpy", "pydantic"}), ("plugins", {"torch", "numpy"})],  # typer has pydantic
)
def test_command_line_answers_without_torch(argument, without):
    code = (
        "from paceline.__main__ import app\n"
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    app([{argument!r}], standalone_mode=False)"
    )
    assert not loaded_by(code) & without
