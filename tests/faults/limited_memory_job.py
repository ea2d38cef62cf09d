"""Trains with a real limit on memory, on one device, and notes what came out.

python limited_memory_job.py '{"batch_size": "auto", "limit": 200}'    (in MiB; none: no limit)
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule

STEP = 3


class Growing(TrainModule):
    """From step 3 on its sequences are eight times as long: 400 MB of activations for a batch of 32.

    Its layers are narrow: a wide one computes for longer to fill as much memory.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(12)])

    def training_step(self, batch):
        length = 512 if self.global_step + 1 < STEP else 4096
        return self.net(batch[0][:, None].expand(-1, length, -1)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    x = torch.randn(128, 32, generator=torch.Generator().manual_seed(1))
    quiet = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
    # What is imported and allocated by then is no step's.
    Trainer(max_steps=STEP - 1, **quiet).fit(Growing(), DataLoader(TensorDataset(x), 32))
    module, trainer = Growing(), Trainer(batch_size=options.get("batch_size"), max_epochs=1, **quiet)
    if "limit" in options:
        most = psutil.Process().memory_info().vms + options["limit"] * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    trainer.fit(module, DataLoader(TensorDataset(x), 32))
    torch.save(module.state_dict(), Path("weights.pt"))
