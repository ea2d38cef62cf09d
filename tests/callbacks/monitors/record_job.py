"""Trains on one rank or two, where rank 1 changes its rate in the end. python record_job.py FOLDER"""

import errno
import io
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, StepRecord

X = torch.stack([torch.arange(24.0), torch.linspace(-1, 1, 24)], 1)


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(1, 1)

    def training_step(self, batch):
        return self.net(batch[0][:, 1:]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Changes(Callback):
    """Rank 1 alone has another rate after the last step."""

    def on_step_end(self, trainer):
        if trainer.rank == 1 and trainer.global_step > 11:
            trainer.optimizers[0].param_groups[0]["lr"] = 0.2


class Full(io.RawIOBase):
    """A file on a full disk."""

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


class Fills(Callback):
    """From step 5 on no byte can be written to the record."""

    def on_step_end(self, trainer):
        (record,) = (one for one in trainer.callbacks if isinstance(one, StepRecord))
        if trainer.global_step == 5 and record._file is not None:
            record._file.close()
            record._file = Full()


def trainer(folder, world=1, **settings):
    data = DataLoader(TensorDataset(X), 4 // world, shuffle=True)
    usual = {"max_epochs": 2, "checkpoint": False, "progress": False, "loggers": False, "name": "net"}
    made = Trainer(
        devices=world, accelerator="cpu", run_dir=folder,
        **usual | {"strategy": "ddp" if world > 1 else "single"} | settings,
    )  # fmt: skip
    return made, data


if __name__ == "__main__":
    folder, *more = sys.argv[1:]
    settings = {"callbacks": Changes()}
    if more == ["full"]:
        settings = {"callbacks": [Fills(), Checkpoint(every=3)], "checkpoint": True}
    elif more:
        settings = {"strategy": more[0], "clip_grad_norm": float(more[1])}
    made, data = trainer(folder, int(os.environ["WORLD_SIZE"]), **settings)
    made.fit(Net(), data)
