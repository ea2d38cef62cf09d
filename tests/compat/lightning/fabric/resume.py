"""Accumulation, clipping, a schedule and validation; stopped within an epoch and resumed from a file."""

from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE, EPOCHS = 2, 2


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, inputs):
        return self.layers(inputs)


def dataset(size, seed):
    inputs = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())


@torch.no_grad()
def validate(fabric, model, loader):
    model.eval()
    losses = [nn.functional.cross_entropy(model(inputs), labels) for inputs, labels in loader]
    model.train()
    return fabric.all_reduce(torch.stack(losses).mean()).item()


def train(fabric, path, stop_at=None):
    fabric.seed_everything(5)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
    model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
    loader, validation = fabric.setup_dataloaders(
        DataLoader(dataset(32, 1), batch_size=4 // fabric.world_size),
        DataLoader(dataset(8, 2), batch_size=4 // fabric.world_size),
    )
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 0, "batch": 0}
    if Path(path).exists():
        assert fabric.load(path, state) == {}
    rows, step = [], 0
    for epoch in range(state["epoch"], EPOCHS):
        skipped = state["batch"] if epoch == state["epoch"] else 0
        for batch_idx, (inputs, labels) in enumerate(loader):
            if batch_idx < skipped:
                continue
            accumulating = (batch_idx + 1) % ACCUMULATE != 0
            with fabric.no_backward_sync(model, enabled=accumulating):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                fabric.backward(loss / ACCUMULATE)
            if accumulating:
                continue
            norm = fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            rows.append([fabric.all_reduce(loss.detach()).item(), float(norm), scheduler.get_last_lr()[0]])
            if step == stop_at:
                fabric.save(path, state | {"epoch": epoch, "batch": batch_idx + 1})
                return rows, None
        rows.append([validate(fabric, model, validation)])
    return rows, {name: value.tolist() for name, value in model.state_dict().items()}


def main(**options):
    fabric = L.Fabric(accelerator="cpu", **{"devices": 1} | options)
    fabric.launch()
    path = f"parts-{options.get('precision')}.ckpt"
    whole = train(fabric, "whole.ckpt")
    first, _ = train(fabric, path, stop_at=6)
    resumed = train(fabric, path)
    saved = torch.load(path, weights_only=True)
    assert [first + resumed[0], resumed[1]] == [*whole]
    kept = {name: value.tolist() for name, value in saved["model"].items()}
    return whole, sorted(saved), saved["epoch"], saved["batch"], kept, saved["optimizer"]["param_groups"]
