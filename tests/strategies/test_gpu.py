"""The strategies on accelerators. All of it is skipped where there is none; some where there are not two.

Run as a script it is the job: python test_gpu.py DEVICES FOLDER NAME...  -> FOLDER/NAME.pt
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.strategies import DDP, FSDP, DeepSpeed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no accelerator"),
]
two = pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="there are not two accelerators")
SECONDS = 240


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Model(TrainModule):
    def __init__(self, fused: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 4)
        self.blocks = nn.ModuleList(Block(32) for _ in range(3))

    def training_step(self, batch):
        hidden = self.first(batch[0])
        for block in self.blocks:
            hidden = block(hidden)
        return F.cross_entropy(self.last(hidden), batch[1])

    def configure_optimizers(self):
        fused = {"fused": True} if self.hparams["fused"] else {}
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3, weight_decay=0.1, **fused)


# The strategy, the precision, and whether the optimizer is fused.
CASES: dict[str, tuple[Callable[[], Any], str, bool]] = {
    "single": (lambda: "single", "32", False),
    "single-fused": (lambda: "single", "32", True),
    "single-bf16": (lambda: "single", "bf16", False),
    "ddp": (DDP, "32", False),
    "ddp-recompute": (lambda: DDP(activation_checkpointing=True), "32", False),
    "ddp-bf16": (DDP, "bf16", False),
    "ddp-selective": (lambda: DDP(activation_checkpointing="selective"), "32", False),
    "ddp-activations-on-host": (lambda: DDP(activation_offload=True), "32", False),
    "fsdp": (FSDP, "32", False),
    "fsdp-selective": (lambda: FSDP(activation_checkpointing="selective"), "32", False),
    "fsdp-activations-on-host": (lambda: FSDP(activation_offload=["blocks.*"]), "32", False),
    "fsdp-recompute": (lambda: FSDP(activation_checkpointing=True), "32", False),
    "fsdp-offload": (lambda: FSDP(cpu_offload=True), "32", False),
    "fsdp-bf16": (FSDP, "bf16", False),
}
for stage in (1, 2, 3):
    CASES[f"zero-{stage}"] = (lambda stage=stage: DeepSpeed(stage), "32", False)
    CASES[f"zero-{stage}-offload"] = (lambda stage=stage: DeepSpeed(stage, offload=True), "32", False)
    CASES[f"zero-{stage}-fused"] = (lambda stage=stage: DeepSpeed(stage), "32", True)
    CASES[f"zero-{stage}-bf16"] = (lambda stage=stage: DeepSpeed(stage), "bf16", False)


def train(name: str, devices: int, folder: Path) -> dict[str, Any]:
    """Six steps on the accelerator, clipped, with two micro-batches on one device."""
    strategy, precision, fused = CASES[name]
    trainer = Trainer(
        strategy=strategy(),
        precision=precision,
        accelerator="gpu",
        devices=devices,
        global_batch_size=16,
        max_steps=6,
        clip_grad_norm=0.5,
        progress=False,
        checkpoint=False,
        loggers=False,
        run_dir=folder / "runs",
        name=name,
    )
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 8, generator=generator)
    module = Model(fused)
    trainer.fit(module, DataLoader(TensorDataset(x, x[:, :4].argmax(1)), 8))
    tensors = {n: t.detach().cpu() for n, t in trainer.strategy.weights.full_tensors(module).items()}
    config = torch.distributed.get_backend_config() if torch.distributed.is_initialized() else ""
    return {"weights": tensors, "backend": str(config), "device": trainer.strategy.device.type}


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """What a case gave; all cases of so many devices run in one job."""
    folders: dict[int, Path] = {}

    def of(name: str, devices: int = 1) -> dict[str, Any]:
        if devices not in folders:
            folders[devices] = folder = tmp_path_factory.mktemp(f"devices-{devices}")
            names = list(CASES) if devices == 1 else ["ddp", "fsdp", "zero-2", "zero-3"]
            command = [sys.executable, __file__, str(devices), str(folder), *names]
            # This file imports pytest, and is a script like any other all the same.
            environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
            with (folder / "output").open("w") as output:
                subprocess.run(command, stdout=output, stderr=output, timeout=SECONDS, env=environment)
        written = folders[devices] / f"{name}.pt"
        assert written.exists(), (folders[devices] / "output").read_text()[-4000:]
        return torch.load(written)

    return of


def assert_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert "error" not in found, found["error"]
    assert found["weights"].keys() == expected["weights"].keys()
    for name, value in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", [n for n in CASES if "bf16" not in n and not n.startswith("single")])
def test_on_one_device_it_equals_single(trained, name):
    assert_close(trained(name), trained("single-fused" if "fused" in name else "single"), 1e-5)


@pytest.mark.parametrize("name", [n for n in CASES if "bf16" in n and not n.startswith("single")])
def test_in_bfloat16_it_equals_single_within_its_rounding(trained, name):
    assert_close(trained(name), trained("single-bf16"), 0.02)


@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero-2", "zero-3"])
def test_the_process_group_has_a_backend_for_the_host_and_one_for_the_device(trained, name):
    found = trained(name)
    assert found["device"] == torch.accelerator.current_accelerator().type
    assert "cpu:gloo" in found["backend"]
    if found["device"] == "cuda":
        assert found["backend"] == "cpu:gloo,cuda:nccl"


@two
@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero-2", "zero-3"])
def test_on_two_devices_it_equals_one(trained, name):
    assert_close(trained(name, 2), trained("single"), 1e-5)


if __name__ == "__main__":
    for given in sys.argv[3:]:
        try:
            result = train(given, int(sys.argv[1]), Path(sys.argv[2]))
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            torch.save(result, Path(sys.argv[2], f"{given}.pt"))
