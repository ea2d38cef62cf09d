import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule, seed_everything
from paceline.callbacks import Checkpoint


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


seed_everything(0)
points = torch.randn(1600, 2)
data = TensorDataset(points, (points[:, 0] * points[:, 1] > 0).long())
trainer = Trainer(
    max_epochs=2,
    strategy="ddp",
    devices=2,
    global_batch_size=8,
    accelerator="cpu",
    callbacks=Checkpoint(every="75st"),
    name=sys.argv[1],
)
trainer.fit(Net(), DataLoader(data, 8, shuffle=True), resume="auto")
