"""Saves a part of a sharded module as plain torch would, in a hook or after the fit.

python saving_job.py OPTIONS   (JSON: {"place": ...})
"""

import json
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(4, 2)

    def training_step(self, batch):
        return self.model(batch[0]).square().mean()

    def on_fit_end(self):
        if PLACE == "in a hook":
            self.save()

    def save(self):
        save_file(self.model.state_dict(), "model.safetensors")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    PLACE = json.loads(sys.argv[1])["place"]
    torch.set_num_threads(1)
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
    module = Net()
    Trainer(strategy="fsdp", devices=2, max_steps=2, **usual).fit(
        module, DataLoader(TensorDataset(torch.ones(16, 4)), 4)
    )
    module.save()
