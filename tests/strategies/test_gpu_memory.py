"""On an accelerator: what activation checkpointing and offload save, and products in float8."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.strategies import Float8, Single

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.launch,  # inductor compiles in processes
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator"),
]
WIDTH, ROWS = 1024, 2048


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4096), nn.Linear(4096, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.lm_head = nn.Linear(WIDTH, 64)

    def training_step(self, batch):
        x = batch[0]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.lm_head(x), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Peak(Callback):
    """The most that is allocated in steps 2 and 3, and the losses."""

    def __init__(self):
        self.losses, self.peak = [], 0

    def on_step_end(self, trainer, outputs):
        self.losses.append(outputs[0].item())
        if trainer.global_step == 1:
            torch.accelerator.reset_peak_memory_stats()
        else:
            self.peak = torch.accelerator.max_memory_allocated()


def train(strategy=None, precision="bf16", **more) -> Peak:
    gc.collect()  # the run before
    peak = Peak()
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(3 * ROWS, WIDTH, generator=draw), torch.arange(3 * ROWS) % 64)
    Trainer(
        strategy=strategy or "single",
        accelerator="gpu",
        devices=1,
        precision=precision,
        callbacks=[peak],
        progress=False,
        checkpoint=False,
        loggers=False,
        run_dir=None,
        **more,
    ).fit(Model(), DataLoader(data, ROWS))
    return peak


def test_each_way_to_save_activations_needs_less_memory_and_changes_no_loss():
    usual = train()
    full = train(Single(activation_checkpointing=True))
    selective = train(Single(activation_checkpointing="selective"))
    offloaded = train(Single(activation_offload=["blocks.*"]))
    assert full.peak < selective.peak < usual.peak
    assert offloaded.peak < 0.8 * usual.peak
    for one in (full, selective, offloaded):
        assert one.losses == pytest.approx(usual.losses, rel=1e-3)


def test_products_in_float8_train_as_those_in_bfloat16_do():
    pytest.importorskip("torchao")
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no float8 products here")
    precision = Float8()
    usual, found = train(), train(precision=precision, compile="blocks")
    assert len(precision.converted) == 12
    assert precision.left_out == {"lm_head": "by its name"}
    assert found.losses == pytest.approx(usual.losses, rel=0.05)
