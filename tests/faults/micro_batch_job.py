"""A rank runs out of memory in a step under batch_size="auto"; then a run that never does.

python micro_batch_job.py '{"strategy": "ddp"}'
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint

SAMPLES, BATCH, STEP = 44, 8, 3
X = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))


class Net(TrainModule):
    """Rank 1 has memory for ``most`` samples from step 3 on."""

    def __init__(self, most: int = 999) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Linear(8, 1))
        self.most = most

    def training_step(self, batch):
        loss = self.net(batch[0]).square().mean()
        self.log("drawn", torch.rand(()))
        if self.trainer.rank == 1 and self.global_step + 1 >= STEP and len(batch[0]) > self.most:
            raise torch.OutOfMemoryError("planted")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def fit(name: str, module: Net, size: int, resume: str | None = None, **settings) -> Trainer:
    trainer = Trainer(
        **settings,
        name=name,
        devices=2,
        accelerator="cpu",
        progress=False,
        log_every=1,
        callbacks=Checkpoint(1, keep=None),
        strategy=options["strategy"],
    )
    trainer.fit(module, DataLoader(TensorDataset(X), size, shuffle=True), resume=resume)
    return trainer


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    batch = options.get("batch", BATCH)
    fit("auto", Net(most=options.get("most", 2)), batch, batch_size="auto", max_epochs=2)
    fit("plain", Net(), BATCH, max_steps=STEP - 1)
    fit("plain", Net(), 2, global_batch_size=2 * BATCH, max_epochs=2, resume="latest")
