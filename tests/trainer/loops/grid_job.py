"""Trains the same runs however many ranks there are; each rank notes what it read, saw and ended with.

python grid_job.py DEVICES FOLDER CASES   (CASES: JSON, name -> arguments of ``train``)

Every number of ranks evaluates as well.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from paceline import Mixture, Trainer, TrainModule
from paceline.callbacks import Callback

DEVICES, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
RANK = int(os.environ.get("RANK", "0"))


# -- training ------------------------------------------------------------------------------------


class Augmented(Dataset):
    """(x, y, index); each read draws from the three generators that datasets draw from."""

    def __init__(self, samples: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(samples, 5, generator=generator, dtype=torch.float64).to(dtype)
        self.y = self.x.sin().sum(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.randn(5, dtype=torch.float64) + random.gauss(0, 1) + np.random.randn(5)
        return self.x[index] + (0.3 * noise).to(self.x.dtype), self.y[index], index


class Regression(TrainModule):
    """Notes the indices of each micro-batch it was trained on."""

    def __init__(self, optimizer: str = "sgd"):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
        self.under_way: list[list[int]] = []

    def training_step(self, batch, batch_idx):
        x, y, index = batch
        self.under_way.append(index.tolist())
        self.log("indices", index.double().sum(), reduce="sum")
        return (self.net(x).squeeze(1) - y).square().mean()

    def configure_optimizers(self):
        if self.hparams["optimizer"] == "adamw":
            return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.8)


class Notes(Callback):
    def __init__(self):
        self.steps, self.rows = [], []

    def on_step_end(self, trainer, outputs):
        # A rank without a sample computes with another's after its own: there is no output of that.
        self.steps.append(trainer.module.under_way[: len(outputs)])
        trainer.module.under_way = []

    def on_step_boundary(self, trainer):
        self.rows.append({k: v for k, v in trainer.metrics.items() if k.startswith("train/")})


class OwnGenerator(Sampler):
    """A sampler that draws without replacement from a generator of its own."""

    def __init__(self, samples: int):
        self.samples = samples
        self.generator = torch.Generator().manual_seed(11)

    def __len__(self):
        return self.samples // 2

    def __iter__(self):
        return iter(torch.randperm(self.samples, generator=self.generator)[: len(self)].tolist())


class HiddenGenerator(Sampler):
    """A sampler whose generator nobody but itself knows of."""

    def __init__(self, samples: int):
        self.samples, self._hidden = samples, np.random.default_rng(12)

    def __len__(self):
        return self.samples

    def __iter__(self):
        return iter(self._hidden.permutation(self.samples).tolist())


class Buckets(Sampler):
    """Batches of samples that are alike, in a drawn order; they are of different sizes."""

    def __init__(self, samples: int):
        of_bucket = [[i for i in range(samples) if i % 3 == bucket] for bucket in range(3)]
        sizes = (7, 5, 2)
        self.batches = [
            b[i : i + s] for b, s in zip(of_bucket, sizes, strict=True) for i in range(0, len(b), s)
        ]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter([self.batches[i] for i in torch.randperm(len(self.batches)).tolist()])


SAMPLERS = {
    "weighted": lambda data: WeightedRandomSampler(
        [float(i % 4) for i in range(len(data))], num_samples=len(data) - 1, replacement=True
    ),
    "subset": lambda data: SubsetRandomSampler(range(7, len(data), 2)),
    "own": lambda data: OwnGenerator(len(data)),
    "hidden": lambda data: HiddenGenerator(len(data)),
    "distributed": lambda data: DistributedSampler(data, num_replicas=DEVICES, rank=RANK, seed=4),
}


def make_loader(data: Dataset, micro: int, sampler: str | None, workers: int) -> DataLoader:
    if sampler == "buckets":
        return DataLoader(data, batch_sampler=Buckets(len(data)))
    if sampler == "mixture":
        parts = Subset(data, range(70)), Subset(data, range(70, len(data)))
        return DataLoader(Mixture(dict(zip(parts, (0.7, 0.3), strict=True))), micro, num_workers=workers)
    if sampler is not None:
        return DataLoader(data, micro, sampler=SAMPLERS[sampler](data), num_workers=workers)
    return DataLoader(data, micro, shuffle=True, num_workers=workers)


def train(
    name: str,
    micro: int,
    precision: str = "64",
    samples: int = 232,
    epochs: int = 3,
    sampler: str | None = None,
    workers: int = 0,
    optimizer: str = "sgd",
    **settings,
) -> None:
    torch.manual_seed(3)
    module, notes = Regression(optimizer), Notes()
    trainer = Trainer(
        strategy="ddp" if DEVICES > 1 else "single",
        accelerator="cpu",
        devices=DEVICES,
        precision=precision,
        max_epochs=epochs,
        log_every=1,
        callbacks=[notes],
        loggers=["-tensorboard", "-curves"],
        checkpoint=False,
        progress=False,
        run_dir=FOLDER / "runs",
        name=name,
        **settings,
    )
    data = Augmented(samples, torch.float64 if precision == "64" else torch.float32)
    trainer.fit(module, make_loader(data, micro, sampler, workers))
    weights = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).tolist()
    note(trainer, name, steps=notes.steps, rows=notes.rows, weights=weights)


def note(trainer: Trainer, name: str, **values) -> None:
    """Keep what this rank has seen in a case."""
    (FOLDER / f"{name}-{trainer.rank}.json").write_text(json.dumps(values))


# -- evaluation ----------------------------------------------------------------------------------


def items(samples: int) -> TensorDataset:
    """Value i * i, class i % 3, index i."""
    index = torch.arange(samples)
    return TensorDataset((index * index).double(), index % 3, index)


class Measuring(TrainModule):
    """Finds class 2 whatever it is given, so a third of its answers are right."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.mean, self.accuracy = MeanMetric(), MulticlassAccuracy(3, average="micro")
        self.by_class = MulticlassAccuracy(3)
        self.ended: list[int] = []

    def measure(self, batch):
        value, kind, index = batch
        found = torch.full_like(kind, 2)
        self.log("mean", value.mean())
        self.log("sum", value.sum(), reduce="sum")
        self.log("count", len(value), reduce="sum")
        self.log("least", value.min(), reduce="min")
        self.log("most", value.max(), reduce="max")
        self.log("accuracy", (found == kind).double().mean())
        self.mean.update(value)
        self.accuracy.update(found, kind)
        self.by_class.update(found, kind)
        self.log("metric_mean", self.mean)
        self.log("metric_accuracy", self.accuracy)
        self.log("metric_by_class", self.by_class)
        return {"returned": index.double().mean()}

    def training_step(self, batch):
        return (self.weight - batch[0]).square().mean()

    def validation_step(self, batch):
        return self.measure(batch)

    def test_step(self, batch):
        return self.measure(batch)

    def predict_step(self, batch):
        return {"index": batch[2], "value": batch[0] + self.weight}

    def on_validation_step_end(self, trainer, output, batch):
        self.ended += batch[2].tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def evaluate() -> None:
    trainer = Trainer(
        accelerator="cpu",
        devices=DEVICES,
        precision="64",
        max_epochs=1,
        loggers=False,
        checkpoint=False,
        progress=False,
        run_dir=FOLDER / "runs",
    )
    module, found = Measuring(), {}

    def loader(samples, batch_size=2, **options):
        return DataLoader(items(samples), batch_size, **options)

    for samples in (1, 5, 11):
        module.ended = []
        found[f"validate-{samples}"] = trainer.validate(module, loader(samples))
        found[f"ended-{samples}"] = list(module.ended)
        found[f"test-{samples}"] = trainer.test(module, loader(samples, 3))
    found["list"] = trainer.validate(module, [loader(5), loader(11, 4), loader(1)])
    found["dict"] = trainer.validate(module, {"short": loader(1), "long": loader(11, 3), "mid": loader(5)})
    trainer.fit(module, loader(9), {"short": loader(1), "long": loader(11, 3)})
    found["fit"] = {k: v for k, v in trainer.metrics.items() if k.startswith("val/")}
    for samples, batch_size in ((1, 4), (11, 2), (103, 10)):
        outputs = trainer.predict(module, loader(samples, batch_size))
        assert all(len(o["index"]) == len(o["value"]) <= batch_size for o in outputs)
        found[f"predict-{samples}"] = [i for o in outputs for i in o["index"].tolist()]
        found[f"values-{samples}"] = [v for o in outputs for v in o["value"].tolist()]
    note(trainer, "evaluate", **found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case, arguments in json.loads(sys.argv[3]).items():
        train(case, **arguments)
    evaluate()
