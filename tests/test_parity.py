"""Parity with the loop one would write, bit for bit: weights, optimizer state and losses after 50 steps."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
import torch
from helpers.pairwise import soaked
from helpers.trainers import fitted, quiet
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule, order_seed, seed_everything

SAMPLES, BATCH, STEPS, SEED = 91, 8, 50, 7
GRID = list(itertools.product(["sgd", "adamw"], ["32", "bf16"], [1, 2], [None, 0.05], ["epoch", "step"]))
# Each pair of two settings' values: the last two settings follow from the first three.
USUAL = [
    (kind, precision, accumulate, 0.05 if bf16 != adamw else None, "step" if twice != adamw else "epoch")
    for adamw, kind in enumerate(["sgd", "adamw"])
    for bf16, precision in enumerate(["32", "bf16"])
    for twice, accumulate in enumerate([1, 2])
]


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 3))


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(x, x[:, :3].argmax(1))


def make_optimizer(kind: str, parameters, interval: str):
    if kind == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=0.01)
    gamma = 0.7 if interval == "epoch" else 0.97
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)


class Classifier(TrainModule):
    def __init__(self, kind: str, interval: str):
        super().__init__()
        self.net = make_net()
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        kind, interval = self.hparams["kind"], self.hparams["interval"]
        optimizer, scheduler = make_optimizer(kind, self.parameters(), interval)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval}}


def by_hand(kind, precision, accumulate, clip, interval):
    """No part of the trainer but the seed of an epoch's order."""
    net, data = make_net(), make_data()
    optimizer, scheduler = make_optimizer(kind, net.parameters(), interval)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    seed_everything(SEED)
    losses, step, epoch = [], 0, 0
    while step < STEPS:
        with torch.random.fork_rng():
            seed_everything(order_seed(SEED, epoch))
            order = torch.cat(list(DataLoader(range(SAMPLES), BATCH, shuffle=True)))
        for start in range(0, SAMPLES, BATCH * accumulate):
            indices = order[start : start + BATCH * accumulate].numpy()
            micro_batches = np.array_split(indices, -(-len(indices) // BATCH))
            for micro in micro_batches:
                x, y = loader.collate_fn([data[i] for i in micro])
                autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else None
                with autocast or contextlib.nullcontext():
                    loss = F.cross_entropy(net(x), y)
                losses.append(loss.item())
                if len(micro_batches) > 1:
                    loss = loss * (len(micro) / len(indices))
                loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if interval == "step":
                scheduler.step()
            if step == STEPS:
                return net, optimizer, losses
        if interval == "epoch":
            scheduler.step()
        epoch += 1
    return net, optimizer, losses


@pytest.mark.parametrize(("kind", "precision", "accumulate", "clip", "interval"), soaked(GRID, USUAL))
def test_equals_the_hand_written_loop(kind, precision, accumulate, clip, interval, tmp_path):
    net, optimizer, losses = by_hand(kind, precision, accumulate, clip, interval)
    trainer = quiet(
        precision=precision,
        accumulate=accumulate,
        clip_grad_norm=clip,
        max_steps=STEPS,
        seed=SEED,
        run_dir=tmp_path,
    )
    module = Classifier(kind, interval)
    trainer.fit(module, DataLoader(make_data(), batch_size=BATCH, shuffle=True))

    assert module.losses == losses
    assert len(set(losses)) > STEPS // 2  # the run really moves
    for mine, theirs in zip(module.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    ours = trainer.optimizers[0]
    assert ours.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    for mine, theirs in zip(ours.state.values(), optimizer.state.values(), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert value is None or torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[key])), key


def test_tail_is_ragged():
    """The grid above means little if the epoch, or its last step, divides evenly."""
    assert SAMPLES % BATCH
    assert SAMPLES % (BATCH * 2) > BATCH
    assert SAMPLES % (BATCH * 2) % 2


def test_order_is_the_loaders_own(tmp_path):
    """``seed_everything(order_seed(seed, epoch))`` and a plain ``for`` give the batches fit gives."""
    loader = DataLoader(make_data(), batch_size=BATCH, shuffle=True)
    seen = []

    class Recorder(Classifier):
        def training_step(self, batch, batch_idx):
            seen.append(batch[0].clone())
            return super().training_step(batch, batch_idx)

    quiet(max_epochs=2, seed=3, run_dir=tmp_path).fit(Recorder("sgd", "epoch"), loader)
    expected = []
    for epoch in range(2):
        seed_everything(order_seed(3, epoch))
        expected += [x for x, _ in loader]
    assert len(seen) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_fp16_equals_the_hand_written_scaler_loop(tmp_path):
    """Overflowing steps are skipped, the scale moves, and no schedule moves on them: at the same steps."""
    scaler_settings = {"init_scale": 2.0**20, "growth_interval": 5}
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler("cpu", **scaler_settings)
    skipped = 0
    data = make_data()
    batches = [data[i : i + 8] for i in range(0, 80, 8)] * 3
    seed_everything(0)
    for x, y in batches:
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < before:
            skipped += 1
        else:
            scheduler.step()
        optimizer.zero_grad()
    assert 0 < skipped < len(batches) // 2

    from paceline.strategies import AutocastFP16

    class Plain(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    precision = AutocastFP16(**scaler_settings)
    module = Plain("sgd", "epoch")
    trainer = fitted(module, batches, precision=precision, clip_grad_norm=0.05, run_dir=tmp_path)
    assert trainer.optimizers[0].param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert precision.loss_scale == scaler.get_scale() != 2.0**20
    for mine, theirs in zip(module.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, theirs)
