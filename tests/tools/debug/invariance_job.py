"""Models that are the same on any number of ranks, and models that are not, each in its own way.

python invariance_job.py DEVICES FOLDER CASE...   (CASE: NAME or NAME@STRATEGY)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from paceline import Trainer, TrainModule, tools

SAMPLES = 30


class Clean(TrainModule):
    """Attention, normalised, with dropout; AdamW makes whole steps of the key bias' rounding."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 3)

    def logits(self, x):
        hidden = self.norm(self.first(x))
        return self.last(self.drop(self.attention(hidden, hidden, hidden, need_weights=False)[0]).mean(1))

    def training_step(self, batch):
        return F.cross_entropy(self.logits(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Tokens(Clean):
    def training_step(self, batch):
        losses = F.cross_entropy(self.logits(batch[0]), batch[1], reduction="none")
        tokens = batch[1] + 1
        return {"loss": (losses * tokens).sum() / tokens.sum(), "weight": tokens.sum()}


class Normed(Clean):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)


class Contrastive(Clean):
    def training_step(self, batch):
        z = F.normalize(self.logits(batch[0]), dim=1)
        return F.cross_entropy(z @ z.t(), torch.arange(len(z)))


class TokensUntold(Tokens):
    def training_step(self, batch):
        return super().training_step(batch)["loss"]


class Noisy(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


class Draws(Clean):
    def __init__(self):
        super().__init__()
        self.noise = Noisy()

    def logits(self, x):
        return super().logits(self.noise(x))


class Ranked(nn.Module):
    def forward(self, x):
        return x * (1 + torch.distributed.get_rank() if torch.distributed.is_initialized() else 1)


class Again(Clean):
    """Calls one layer twice, and masks with -inf."""

    def __init__(self):
        super().__init__()
        self.mask = Mask()

    def logits(self, x):
        return super().logits(self.drop(self.mask(self.drop(x)).softmax(-1)))


class Mask(nn.Module):
    def forward(self, x):
        return x.masked_fill(torch.tensor([True, False, False, False]), -torch.inf)


class Manual(Clean):
    """Two optimizers; the second one's loss goes through the first one's layers."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch):
        for optimizer in self.optimizers():
            loss = F.cross_entropy(self.logits(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        first = [p for n, p in self.named_parameters() if n.startswith("first")]
        others = [p for n, p in self.named_parameters() if not n.startswith("first")]
        return [torch.optim.AdamW(first, lr=0.01), torch.optim.SGD(others, lr=0.1)]


class ManualScaled(Manual):
    def logits(self, x):
        logits = super().logits(x)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: gradient * len(logits))
        return logits


class ByRank(Draws):
    def __init__(self):
        super().__init__()
        self.noise = Ranked()


class Counting(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class ByCalls(Draws):
    def __init__(self):
        super().__init__()
        self.noise = Counting()


class Scaled(Clean):
    """A hook that makes the backward depend on how many samples there are."""

    def training_step(self, batch):
        logits = self.logits(batch[0])
        logits.register_hook(lambda gradient: gradient * len(logits))
        return F.cross_entropy(logits, batch[1])


def few() -> Subset:
    """A last step with a sample for one rank alone."""
    return Subset(plain(), range(9))


def plain() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 5, 4, generator=generator)
    return TensorDataset(x, x[:, 0, :3].argmax(1))


class Augmented(Dataset):
    def __init__(self):
        self.inner = plain()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x, y = self.inner[index]
        return x + torch.randn_like(x), y


class Unseeded(Augmented):
    def __getitem__(self, index):
        x, y = self.inner[index]
        return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(torch.seed() % 2**32)), y


class Streamed(IterableDataset):
    def __iter__(self):
        yield from Augmented()


class EndlessGenerator(Augmented):
    """Goes on from where the pass before left its own generator."""

    def __init__(self):
        super().__init__()
        self.own = torch.Generator().manual_seed(1)

    def __getitem__(self, index):
        x, y = self.inner[index]
        return x + torch.randn(x.shape, generator=self.own), y


CASES = {
    "clean": (Clean, plain),
    "tokens": (Tokens, plain),
    "few": (Clean, few),
    "augmented": (Clean, Augmented),
    "streamed": (Clean, Streamed),
    "again": (Again, plain),
    "manual": (Manual, plain),
    "manual-scaled": (ManualScaled, plain),
    "batch-norm": (Normed, plain),
    "contrastive": (Contrastive, plain),
    "tokens-untold": (TokensUntold, plain),
    "draws": (Draws, plain),
    "by-rank": (ByRank, plain),
    "by-calls": (ByCalls, plain),
    "scaled": (Scaled, plain),
    "own-generator": (Clean, EndlessGenerator),
}


def check(case: str, devices: int, folder: Path, **settings):
    """What check_invariance finds, and whether the module was left as it was."""
    name, _, strategy = case.partition("@")
    make, data = CASES[name]
    torch.manual_seed(1)
    module, dataset = make(), data()
    before = {n: v.clone() for n, v in module.state_dict().items()}
    torch.manual_seed(5)
    trainer = Trainer(
        strategy=strategy or "auto",
        accelerator="cpu",
        devices=devices,
        clip_grad_norm=0.01,
        progress=False,
        run_dir=folder / "runs",
        **settings,
    )
    shuffle = None if isinstance(dataset, IterableDataset) else True
    found = tools.check_invariance(trainer, module, DataLoader(dataset, batch_size=4, shuffle=shuffle))
    same = all(torch.equal(v, before[n]) for n, v in module.state_dict().items())
    return trainer, found, same and module.drop.p == 0.5


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[3:]:
        trainer, found, untouched = check(case, int(sys.argv[1]), Path(sys.argv[2]))
        about = {"same": bool(found), "text": str(found), "untouched": untouched}
        (Path(sys.argv[2]) / f"{case}-{trainer.rank}.json").write_text(json.dumps(about))
