"""Counts confusions and shows samples on two ranks. python classification_job.py FOLDER STRATEGY..."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import ConfusionMatrix, SampleImages

COUNT = 19  # no multiple of a batch, nor of the ranks
TARGETS = torch.arange(COUNT) % 3
TARGETS[5] = -100
PREDICTED = (torch.arange(COUNT) * 7 // 3) % 3
IMAGES = torch.arange(COUNT * 4.0).reshape(COUNT, 1, 2, 2)


class Net(TrainModule):
    """Its head's logits are the one-hot predictions."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.head.weight)

    def training_step(self, batch):
        return self.head(nn.functional.one_hot(batch[1], 3).float()).square().mean()

    def validation_step(self, batch):
        logits = self.head(nn.functional.one_hot(batch[1], 3).float())
        self.log("first", logits[:, 0].mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Shown(SampleImages):
    """Keeps what it draws."""

    def __init__(self, **options):
        super().__init__(["a", "b", "c"], "head", target=2, **options)
        self.drawn = []

    def _drawn(self, samples):
        self.drawn.append([[index, int(image[0, 0, 0]), t, p] for index, image, t, p in samples])
        return super()._drawn(samples)


def train(folder, strategy="single", world=1, **settings):
    data = DataLoader(TensorDataset(IMAGES, PREDICTED, TARGETS), 4)
    confusion, shown = ConfusionMatrix(3, "head", target=2), Shown(count=6)
    trainer = Trainer(
        strategy=strategy, devices=world, accelerator="cpu", max_epochs=2,
        loggers=["-tensorboard", "-curves"],
        callbacks=[confusion, shown], run_dir=folder, name="r", progress=False, checkpoint=False,
        **settings,
    )  # fmt: skip
    run = trainer.fit(Net(), data, data)
    return run, confusion, shown


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for strategy in sys.argv[2:]:
        _, confusion, shown = train(folder / strategy, strategy, 2)
        found = {"matrix": confusion.matrix.tolist(), "drawn": shown.drawn}
        (folder / f"{strategy}-{os.environ['RANK']}.json").write_text(json.dumps(found))
