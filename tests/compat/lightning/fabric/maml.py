"""Meta-learning: gradients of gradients inside, the outer backward through Fabric."""

import lightning as L
import torch
from torch import nn
from torch.func import functional_call


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs):
        return self.layers(inputs)


def task(generator):
    amplitude, phase = torch.rand(2, generator=generator)
    inputs = 4 * torch.rand(10, 1, generator=generator) - 2
    return inputs, (0.5 + amplitude) * torch.sin(inputs + 3 * phase)


def adapted(fabric, model, inputs, targets, lr=0.1):
    weights = dict(model.module.named_parameters())
    for _ in range(2):
        loss = nn.functional.mse_loss(functional_call(model.module, weights, inputs), targets)
        gradients = torch.autograd.grad(loss, [*weights.values()], create_graph=True)
        pairs = zip(weights.items(), gradients, strict=True)
        weights = {name: value - lr * gradient for (name, value), gradient in pairs}
    return weights


def main(**options):
    fabric = L.Fabric(accelerator="cpu", **{"devices": 1} | options)
    fabric.launch()
    fabric.seed_everything(3)
    model = Sine()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = fabric.setup(model, optimizer)
    generator = torch.Generator().manual_seed(11)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        meta_loss = 0.0
        for _ in range(3):
            inputs, targets = fabric.to_device(task(generator))
            weights = adapted(fabric, model, inputs[:5], targets[:5])
            with fabric.autocast():
                query = functional_call(model.module, weights, inputs[5:])
            loss = nn.functional.mse_loss(query, targets[5:])
            fabric.backward(loss / 3)
            meta_loss += loss.item()
        optimizer.step()
        losses.append(meta_loss)
    return losses, {name: value.tolist() for name, value in model.state_dict().items()}
