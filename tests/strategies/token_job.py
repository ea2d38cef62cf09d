"""Trains on padded sequences whose loss is a mean over tokens, once for each case.

python token_job.py DEVICES FOLDER CASES   (CASES: JSON, name -> arguments of ``train``)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from parity_job import LateAverage
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.strategies import HSDP, Distributed

GLOBAL, WORDS, WIDTH, PADDING = 32, 11, 6, -1
DEVICES, FOLDER = int(sys.argv[1]), Path(sys.argv[2])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Tokens(TrainModule):
    """Says the next word from the ones before; padding after a sequence changes nothing in it."""

    def __init__(self, optimizer: str):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(WIDTH, WORDS)

    def training_step(self, batch, batch_idx):
        words, following = batch
        hidden = self.words(words)
        counts = torch.arange(1, hidden.shape[1] + 1, dtype=hidden.dtype)[:, None]
        hidden = hidden + hidden.cumsum(1) / counts
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.last(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=PADDING)
        counted = following != PADDING
        right = (logits.argmax(2) == following)[counted].double().mean()
        self.log("tokens", counted.sum(), reduce="sum")
        return {"loss": loss, "weight": counted.sum(), "accuracy": right}

    def configure_optimizers(self):
        if self.hparams["optimizer"] == "sgd":
            return torch.optim.SGD(self.parameters(), lr=3.0, momentum=0.9)
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


class AtTheUpdate(Distributed):
    """Another one: gradients meet where they are unscaled, and the last micro-batch is nothing special."""

    name = "at-the-update"

    def setup(self, module, build_optimizers):
        self.prepare_module(module)
        return build_optimizers()

    def unscale(self, optimizer):
        super().unscale(optimizer)
        self.average_gradients([p for group in optimizer.param_groups for p in group["params"]])


OBJECTS = {
    "hsdp-copies": lambda: HSDP(replicate=2),
    "LateAverage": LateAverage,
    "AtTheUpdate": AtTheUpdate,
}


class Norms(Callback):
    """The norm of each step's gradients, before they are clipped; on one device."""

    def __init__(self):
        self.found = []

    def on_before_optimizer_step(self, trainer, optimizer):
        squares = [p.grad.square().sum() for p in trainer.module.parameters()]
        self.found.append(float(sum(squares)) ** 0.5)


def sequences(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(words, words that follow), most of them short and some very long: 1 to 200 tokens."""
    generator = torch.Generator().manual_seed(8)
    lengths = (1 + 199 * torch.rand(count, generator=generator) ** 4).round().int().tolist()
    lengths[:2] = [1, 200]
    made = []
    for length in lengths:
        words = torch.randint(WORDS, (length + 1,), generator=generator)
        words[1::2] = (words[:-1:2] * 3 + 1)[: len(words[1::2])] % WORDS  # something to learn
        made.append((words[:-1], words[1:]))
    return made


def padded(samples):
    words, following = zip(*samples, strict=True)
    pad = nn.utils.rnn.pad_sequence
    return pad(words, batch_first=True), pad(following, batch_first=True, padding_value=PADDING)


def train(name: str, strategy: str, micro: int, samples: int, optimizer: str, **settings) -> None:
    torch.manual_seed(3)
    norms = Norms()
    trainer = Trainer(
        strategy=OBJECTS[strategy]() if strategy in OBJECTS else strategy,
        accelerator="cpu",
        devices=DEVICES,
        max_epochs=2,
        global_batch_size=GLOBAL,
        log_every=1,
        callbacks=[Checkpoint(every=1000), *([norms] if DEVICES == 1 else [])],
        loggers=["-tensorboard", "-curves"],
        progress=False,
        run_dir=FOLDER,
        name=name,
        **settings,
    )
    data = sequences(samples)
    trainer.fit(Tokens(optimizer), DataLoader(data, micro, shuffle=True, collate_fn=padded))
    if DEVICES == 1:
        noted = {"norms": norms.found, "lengths": [len(words) for words, _ in data]}
        (FOLDER / f"{name}.json").write_text(json.dumps(noted))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case, arguments in json.loads(sys.argv[3]).items():
        train(case, **arguments)
