"""What the tests of averaged weights train: a small net, its data, and the same by a plain loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule

from .checkpoints import stored_tensors

X = torch.linspace(-1, 1, 48).reshape(24, 2)
STEPS = 6  # of an epoch, on batches of 4


class Net(TrainModule):
    def __init__(self, norm=False):
        super().__init__()
        torch.manual_seed(0)
        middle = nn.BatchNorm1d(5) if norm else nn.Tanh()
        self.net = nn.Sequential(nn.Linear(2, 5), middle, nn.Linear(5, 1))

    def loss(self, batch):
        return (self.net(batch[0]) - batch[0].prod(1, keepdim=True)).square().mean()

    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def loader(size=4):
    return DataLoader(TensorDataset(X), size)


def fit(module, *callbacks, data=None, val=None, resume=None, size=4, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 3}
    usual |= {"checkpoint": False, "sanity_val_batches": 0}
    trainer = Trainer(callbacks=list(callbacks), **(usual | settings))
    trainer.fit(module, loader(size) if data is None else data, val, resume=resume)
    return trainer


def weights_by_hand(epochs=3, size=4):
    """The weights after each step of a plain loop, by name."""
    module = Net()
    optimizer = module.configure_optimizers()
    found = []
    for _ in range(epochs):
        for x in X.split(size):
            module.loss((x,)).backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append({name: p.detach().clone() for name, p in module.named_parameters()})
    return found


def lookahead_by_hand(every, alpha, epochs=3, size=4):
    """The slow weights at the end of a plain loop that the fast ones are set back to."""
    module = Net()
    optimizer, slow, step = module.configure_optimizers(), parameters(module), 0
    batches = [x for _ in range(epochs) for x in X.split(size)]
    for step, x in enumerate(batches, 1):
        module.loss((x,)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            part = alpha(step / len(batches)) if callable(alpha) else alpha
            slow = {n: slow[n] + part * (p.detach() - slow[n]) for n, p in module.named_parameters()}
            module.load_state_dict(slow)
    return slow


def averaged(weights, decays):
    """An exponential average: the first weights, then one decay for each of the others."""
    value = dict(weights[0])
    for now, decay in zip(weights[1:], decays, strict=True):
        value = {name: decay * value[name] + (1 - decay) * now[name] for name in value}
    return value


def assert_same(found, expected, tolerance=1e-6):
    assert set(found) == set(expected)
    for name, value in expected.items():
        same = found[name].to(value.dtype)
        torch.testing.assert_close(same, value, rtol=tolerance, atol=tolerance)


def parameters(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def mean(weights):
    return {name: torch.stack([one[name] for one in weights]).mean(0) for name in weights[0]}


def in_checkpoint(path, key="EMA"):
    prefix = f"callback.{key}/"
    return {n.removeprefix(prefix): t for n, t in stored_tensors(path).items() if n.startswith(prefix)}


def trained(path):
    return {n.removeprefix("model."): t for n, t in stored_tensors(path).items() if n.startswith("model.")}
