"""Trains models whose gradients come in unusual ways, or are worked on by the user, and keeps the weights.

python gradients_job.py DEVICES FOLDER CASES   (CASES: JSON, name -> {kind, strategy, model ...})
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.strategies import DDP, FSDP

GLOBAL, STEPS = 8, 2


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as it is usually written: two methods, and another optimizer inside."""

    def __init__(self, parameters, rho=0.5, lr=0.1):
        super().__init__(parameters, {"rho": rho, "lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.base.param_groups

    def _held(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        held = self._held()
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        for p in held:
            self.state[p]["before"] = p.detach().clone()
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for p in self._held():
            p.copy_(self.state[p].pop("before"))
        self.base.step()
        if zero_grad:
            self.zero_grad()


class Blocks(TrainModule):
    """A block, and what follows it.

    Args:
        uses: How often the block is used in a forward.
        reentrant: The kind of activation checkpointing for each use; None: none.
    """

    def __init__(self, uses: int = 1, reentrant: bool | None = None):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.last = nn.Linear(4, 2)
        self.spare = nn.Linear(4, 2)

    def predict(self, x):
        for _ in range(self.hparams["uses"]):
            if self.hparams["reentrant"] is None:
                x = self.block(x)
            else:
                x = checkpoint(self.block, x, use_reentrant=self.hparams["reentrant"])
        return x

    def loss(self, batch):
        x, y = batch
        x = self.predict(x.clone().requires_grad_())
        return (self.last(x) + self.spare(x) - y).square().mean()

    def training_step(self, batch):
        return self.loss(batch)

    def parallelize(self, mesh):
        parallelize_module(self.block, mesh, {"0": ColwiseParallel(output_layouts=Replicate())})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Units(Blocks):
    def shard_units(self):
        return [self.block]


class TwoBackwards(Blocks):
    """Goes backward from two losses.

    Args:
        second: What the second one reaches: ``all``, ``spare``, which the first does not, or ``apart``,
            that alone.
    """

    def __init__(self, second: str = "all"):
        super().__init__()
        self.hparams.update(uses=1, reentrant=None)

    def training_step(self, batch):
        x, y = batch
        block = self.predict(x)
        self.other = (self.spare(x if self.hparams["second"] == "apart" else block) - 2 * y).square().mean()
        x = block
        loss = (self.last(x) - y).square().mean()
        return loss + self.other if self.hparams["second"] == "all" else loss

    def backward(self, loss):
        super().backward(2 * loss, retain_graph=self.hparams["second"] != "apart")
        super().backward(self.other)


class Direct(Blocks):
    """Leaves the loop's own backward out."""

    def backward(self, loss):
        loss.backward()


class Manual(Blocks):
    """Manual optimization.

    Args:
        way: What is done between the backward and the update.
    """

    automatic_optimization = False

    def __init__(self, way: str = "clip"):
        super().__init__()
        self.hparams.update(uses=1, reentrant=None)

    def training_step(self, batch, batch_idx):
        getattr(self, self.hparams["way"])(batch, batch_idx)

    def clip(self, batch, batch_idx):
        self.optimizers().zero_grad()
        self.manual_backward(self.loss(batch))
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        self.optimizers().step()

    def parts(self, batch, batch_idx):
        """Two backwards and a clip, of which the second does not reach all."""
        self.optimizers().zero_grad()
        self.manual_backward(self.loss(batch))
        self.manual_backward(self.last(batch[0]).square().mean())
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        self.optimizers().step()

    def retained(self, batch, batch_idx):
        """Two losses over one forward."""
        self.optimizers().zero_grad()
        x = self.predict(batch[0])
        self.manual_backward((self.last(x) - batch[1]).square().mean(), retain_graph=True)
        self.manual_backward((self.spare(x) - batch[1]).square().mean())
        self.optimizers().step()

    def ahead(self, batch, batch_idx):
        """Two forwards, then their backwards."""
        self.optimizers().zero_grad()
        losses = self.loss(batch), self.last(batch[0]).square().mean()
        for loss in losses:
            self.manual_backward(loss)
        self.optimizers().step()

    def sam(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch))
        optimizer.first_step(zero_grad=True)
        self.manual_backward(self.loss(batch))
        optimizer.second_step(zero_grad=True)

    def later(self, batch, batch_idx):
        """Gradients are averaged in every second step, with the update."""
        updates = batch_idx % 2 == 1
        self.trainer.strategy.synchronise_gradients(updates)
        self.manual_backward(self.loss(batch))
        if updates:
            nn.utils.clip_grad_norm_(self.parameters(), 0.1)
            self.optimizers().step()
            self.optimizers().zero_grad()

    def sent(self, batch, batch_idx):
        """Notes how many gradients each call has averaged."""
        strategy, counts = self.trainer.strategy, []
        average = type(strategy).average_gradients

        def counted(parameters, *more):
            counts.append(len(parameters))
            return average(strategy, parameters, *more)

        strategy.average_gradients = counted
        self.optimizers().zero_grad()
        self.manual_backward(self.loss(batch))  # six parameters
        self.manual_backward(self.last(batch[0]).square().mean())  # two of them
        self.optimizers().step()  # all are averaged
        self.manual_backward(self.last(batch[0]).square().mean())  # the others are not, though unscaled
        strategy.synchronise_gradients(False)
        self.manual_backward(self.spare(batch[0]).square().mean())
        self.optimizers().step()
        strategy.synchronise_gradients(True)
        del strategy.average_gradients
        self.found = counts

    def uneven(self, batch, batch_idx):
        """One rank has another loss."""
        self.optimizers().zero_grad()
        self.manual_backward(self.loss(batch))
        if self.trainer.rank == 1:
            self.manual_backward(0 * self.loss(batch))
        self.optimizers().step()

    def uneven_unasked(self, batch, batch_idx):
        self.trainer.strategy.synchronise_gradients(False)
        self.uneven(batch, batch_idx)

    def unasked(self, batch, batch_idx):
        """Averaging is switched off, and never on again."""
        self.trainer.strategy.synchronise_gradients(False)
        self.optimizers().zero_grad()
        self.manual_backward(self.loss(batch))
        self.optimizers().step()

    def sam_unasked(self, batch, batch_idx):
        self.trainer.strategy.synchronise_gradients(False)
        self.sam(batch, batch_idx)

    def torchs(self, batch, batch_idx):
        self.optimizers().zero_grad()
        self.loss(batch).backward()
        self.optimizers().step()

    def assigned(self, batch, batch_idx):
        parameters = list(self.parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(self.loss(batch), parameters), strict=True):
            p.grad = gradient
        self.optimizers().step()

    def configure_optimizers(self):
        return SAM(self.parameters()) if "sam" in self.hparams["way"] else super().configure_optimizers()


class Apart(Blocks):
    """Rank 1 does otherwise than rank 0.

    Args:
        about: What is not the same: ``weight``, ``weight-later``, ``groups`` or ``order``.
    """

    def __init__(self, about: str):
        super().__init__()
        self.hparams.update(uses=1, reentrant=None)
        self.about = about

    def training_step(self, batch):
        loss, differs = self.loss(batch), self.trainer.rank == 1
        if self.about == "weight" and differs:
            return {"loss": loss, "weight": 2.0}
        if self.about == "weight-later" and not (differs and self.global_step == 2):
            return {"loss": loss, "weight": 2.0}
        return loss

    def configure_optimizers(self):
        groups, differs = [[*self.block.parameters(), *self.last.parameters()]], self.trainer.rank == 1
        groups.append([*self.spare.parameters()])
        if self.about == "groups" and differs:
            groups = [[*groups[0], *groups[1]]]
        if self.about == "order" and differs:
            groups[0].reverse()
        return torch.optim.SGD([{"params": group} for group in groups], lr=0.1)


KINDS = {
    "blocks": Blocks,
    "units": Units,
    "two": TwoBackwards,
    "direct": Direct,
    "manual": Manual,
    "apart": Apart,
}
STRATEGIES = {
    "never": lambda: DDP(find_unused_parameters=False),
    "always": lambda: DDP(find_unused_parameters=True),
    "static": lambda: DDP(static_graph=True),
    "tensor": lambda: FSDP(tensor=2),
}


def train(folder: Path, name: str, devices: int, case: dict) -> None:
    case = dict(case)
    ends = case.pop("ends", False)
    torch.manual_seed(3)
    precision = "32" if case["strategy"].startswith("deepspeed") else "64"  # which it does not have
    module = KINDS[case.pop("kind")](**case.pop("model", {}))
    generator = torch.Generator().manual_seed(1)
    dtype = torch.float64 if precision == "64" else torch.float32
    x, y = (torch.randn(GLOBAL * STEPS, n, generator=generator, dtype=torch.float64) for n in (4, 2))
    samples = TensorDataset(x.to(dtype), (y + 1).to(dtype))
    strategy = case.pop("strategy")
    trainer = Trainer(
        strategy=STRATEGIES.get(strategy, lambda: strategy)(),
        **{"accelerator": "cpu", "devices": devices, "precision": precision, "max_steps": 2 * STEPS} | case,
        callbacks=[Checkpoint(every="1000ep")],
        progress=False,
        loggers=False,
        run_dir=folder,
        name=name,
    )
    kept: dict = {}
    try:
        trainer.fit(module, DataLoader(samples, batch_size=GLOBAL // trainer.ranks.data_world_size))
        kept["found"] = getattr(module, "found", None)
    except Exception as error:  # which one it is says the test
        kept["error"] = f"{type(error).__name__}: {error}"
        if ends:
            raise
    (folder / f"{name}-{trainer.rank}.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, case in json.loads(sys.argv[3]).items():
        train(Path(sys.argv[2]), name, int(sys.argv[1]), case)
