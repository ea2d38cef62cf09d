"""Trains small models under manual optimization, on a given number of ranks, and keeps what came out.

python manual_job.py DEVICES FOLDER CASES   (CASES: JSON, name -> {kind, strategy, settings ...})
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint

GLOBAL, EPOCHS = 8, 2


class Generator(nn.Module):
    """``extra`` serves flagged samples alone: a batch without one gives it no gradient."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.extra = nn.Linear(2, 2)

    def forward(self, noise, flags):
        made = self.net(noise)
        return torch.where(flags[:, None], self.extra(made), made) if flags.any() else made


class GAN(TrainModule):
    """Two optimizers, three backwards and a schedule each; its noise is in the batch.

    Args:
        every: Training steps between two updates; gradients add up meanwhile.
    """

    automatic_optimization = False

    def __init__(self, every: int = 1):
        super().__init__()
        self.generator = Generator()
        self.critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(), nn.Linear(8, 1))

    def nets(self):
        return self.generator, self.critic

    def training_step(self, batch, batch_idx):
        real, noise, flags = batch
        generator, critic = self.nets()
        optimizers = generator_opt, critic_opt = self.optimizers()
        turn = batch_idx % self.hparams["every"]
        updates = turn == self.hparams["every"] - 1
        if turn == 0:
            for optimizer in optimizers:
                optimizer.zero_grad()
        fake = generator(noise, flags)
        real_loss = F.softplus(-critic(real)).mean()
        fake_loss = F.softplus(critic(fake.detach())).mean()
        self.manual_backward(real_loss)
        self.manual_backward(fake_loss)
        if updates:
            critic_opt.step()
        loss = F.softplus(-critic(fake)).mean()
        self.manual_backward(loss)  # the critic gets gradients of it too
        if updates:
            generator_opt.step()
            for schedule in self.lr_schedulers():
                schedule.step()
        self.log("critic", real_loss + fake_loss)
        return loss

    def validation_step(self, batch):
        return self.nets()[1](batch[0]).mean()

    def configure_optimizers(self):
        generator, critic = self.nets()
        optimizers = [
            torch.optim.AdamW(generator.parameters(), lr=1e-2, eps=1e-3),
            torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9),
        ]
        schedules = [
            torch.optim.lr_scheduler.StepLR(optimizers[0], 4, gamma=0.5),
            torch.optim.lr_scheduler.ExponentialLR(optimizers[1], 0.9),
        ]
        return optimizers, schedules


class Layers(nn.Module):
    """A list of layers, called one by one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 8), nn.Linear(8, 1)])

    def forward(self, x):
        return self.layers[1](F.leaky_relu(self.layers[0](x), 0.1))


class Listed(GAN):
    """The same with its parts in containers, which nobody calls."""

    def __init__(self, every: int = 1):
        super().__init__(every)
        self.parts = nn.ModuleDict({"generator": self.generator, "critics": nn.ModuleList([Layers()])})
        del self.generator, self.critic

    def nets(self):
        return self.parts["generator"], self.parts["critics"][0]


class One(TrainModule):
    """One optimizer.

    Args:
        backwards: How many losses there are, each with a backward.
        closure: The optimizer evaluates the loss itself.
    """

    automatic_optimization = False

    def __init__(self, backwards: int = 1, closure: bool = False):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    def training_step(self, batch):
        real, noise, _ = batch
        optimizer = self.optimizers()

        def backward():
            optimizer.zero_grad()
            for number in range(self.hparams["backwards"]):
                loss = (self.net(noise) - real - number).square().mean()
                self.manual_backward(loss)
            return loss

        if self.hparams["closure"]:
            optimizer.step(backward)
            return
        loss = backward()
        optimizer.step()
        self.lr_schedulers().step()
        self.log("loss", loss)

    def configure_optimizers(self):
        if self.hparams["closure"]:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, eps=1e-3)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)


class Bare(One):
    """Has parameters in a list, which no forward uses."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(2))])


class Watched(One):
    """Notes whether gradients differ between ranks after a backward, and ahead of the update."""

    def training_step(self, batch):
        self.seen = {"behind_backward": [], "before_update": []}
        super().training_step(batch)

    def manual_backward(self, loss):
        super().manual_backward(loss)
        self.look("behind_backward")

    def on_before_optimizer_step(self, trainer, optimizer):
        self.look("before_update")
        self.before_clipping = nn.utils.get_total_norm([p.grad for p in self.parameters()]).item()

    def look(self, when):
        everyone = self.all_gather(self.net[0].weight.grad)
        self.seen[when].append(bool((everyone == everyone[0]).all()))

    def on_fit_end(self, trainer):
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters()]).item()
        hooks = [p._backward_hooks or p._post_accumulate_grad_hooks for p in self.parameters()]
        found = self.seen | {"norms": [self.before_clipping, norm], "hooks": sum(map(bool, hooks))}
        self.found = {"clip": trainer.settings.clip_grad_norm, **found}


KINDS = {"gan": GAN, "listed": Listed, "one": One, "bare": Bare, "watched": Watched}


def data(dtype: torch.dtype, samples: int, flags: int) -> TensorDataset:
    """Samples, noise, and a flag on every so manieth sample: on one rank only, and on none at times."""
    generator = torch.Generator().manual_seed(1)
    real = torch.randn(samples, 2, generator=generator, dtype=torch.float64).to(dtype) * 0.5 + 1
    noise = torch.randn(samples, 3, generator=generator, dtype=torch.float64).to(dtype)
    flagged = torch.arange(samples) % flags == 0 if flags else torch.ones(samples, dtype=torch.bool)
    return TensorDataset(real, noise, flagged)


def train(folder: Path, name: str, devices: int, case: dict) -> None:
    case = dict(case)
    torch.manual_seed(3)
    module = KINDS[case.pop("kind")](**case.pop("model", {}))
    dtype = torch.float64 if case.get("precision") == "64" else torch.float32
    samples = data(dtype, case.pop("samples", 37), case.pop("flags", 0))
    settings = {
        "accelerator": "cpu",
        "devices": devices,
        "max_epochs": EPOCHS,
        "clip_grad_norm": 0.2,
        "log_every": 1,
        "callbacks": [Checkpoint(every=case.pop("save", 1000), keep=None)],
        "progress": False,
        "loggers": ["-tensorboard", "-curves"],
        "run_dir": folder,
        "name": name,
    }
    resume = case.pop("resume", None)
    trainer = Trainer(**(settings | case))
    loader = DataLoader(samples, batch_size=GLOBAL // devices)
    kept: dict = {}
    try:
        source = None if resume is None else folder / resume
        trainer.fit(module, loader, DataLoader(samples, 7), resume=source)
        kept |= getattr(module, "found", {})
    except PacelineError as error:
        kept["error"] = str(error)
    (folder / f"{name}-{trainer.rank}.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, case in json.loads(sys.argv[3]).items():
        train(Path(sys.argv[2]), name, int(sys.argv[1]), case)
