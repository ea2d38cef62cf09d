"""Trains on data that can only be iterated, on a given number of ranks.

python streams_job.py DEVICES FOLDER CASE...   (CASE: a name of CASES, or stop:NAME, or resume:NAME)
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from paceline import Mixture, PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint

DEVICES = int(sys.argv[1])
FOLDER = Path(sys.argv[2])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SIZE = 100


def sample(i: int) -> tuple[torch.Tensor, int]:
    return torch.tensor([float(i), 1.0], dtype=torch.float64) / SIZE + torch.rand(()).double(), i


class Stream(IterableDataset):
    """Does not ask who reads it. Shuffles, as a buffer would, with what is drawn."""

    def __iter__(self):
        for i in torch.randperm(SIZE).tolist():
            yield sample(i)


class Sharing(IterableDataset):
    """Gives each worker a part."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, SIZE, step):
            yield torch.tensor([float(i), 1.0], dtype=torch.float64) / SIZE, i


class Keeping(IterableDataset):
    """Knows where it is."""

    next = 0

    def __iter__(self):
        first, self.next = self.next, 0
        for i in range(first, SIZE):
            self.next = i + 1
            yield sample(i)
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class OwnPart(IterableDataset):
    """Gives each rank a part; the first rank has the most."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __iter__(self):
        cut = [0, *(self.size - 10 * (WORLD - r) for r in range(1, WORLD)), self.size]
        yield from map(sample, range(cut[RANK], cut[RANK + 1]))


class OwnKeeping(Keeping):
    def __iter__(self):
        first, self.next = self.next, 0
        for i in range(first, SIZE // WORLD):
            self.next = i + 1
            yield sample(RANK * (SIZE // WORLD) + i)
        self.next = 0


class OwnUneven(Keeping):
    """The first rank's part is the larger one, and the last rank's ends in step 2."""

    def __iter__(self):
        cut = [0, *(SIZE - 14 * (WORLD - r) for r in range(1, WORLD)), SIZE]
        mine = range(cut[RANK], cut[RANK + 1])
        first, self.next = self.next, 0
        for i in range(first, len(mine)):
            self.next = i + 1
            yield sample(mine[i])
        self.next = 0


class OwnArrays(OwnPart):
    """Gives arrays, which are no tensors until the step makes them so."""

    def __iter__(self):
        yield from ((x.numpy(), i) for x, i in super().__iter__())


class EndsEarly(IterableDataset):
    """The same for all ranks, but for the end."""

    def __iter__(self):
        for i in range(SIZE - 30 * RANK):
            yield torch.tensor([float(i), 1.0], dtype=torch.float64) / SIZE, i


class LastBatchSmaller(IterableDataset):
    def __iter__(self):
        for i in range(SIZE - RANK):
            yield torch.tensor([float(i), 1.0], dtype=torch.float64) / SIZE, i


def as_arrays(samples):
    return np.stack([x for x, _ in samples]), np.array([i for _, i in samples])


class OneForRankZero(IterableDataset):
    def __iter__(self):
        yield from map(sample, range(10 if RANK == 0 else 0))


class Numbers(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return sample(index)


class Odd(Sampler):
    """Draws from where no seed reaches."""

    def __iter__(self):
        order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(RANK))
        return iter(order.tolist())

    def __len__(self):
        return SIZE


class Model(TrainModule):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        nn.init.ones_(self.line.weight)

    def step(self, batch):
        x, ids = map(torch.as_tensor, batch)
        for power in (0, 1, 2, 3):
            self.log(f"ids{power}", ids.double().pow(power).sum(), reduce="sum")
        return (self.line(x).squeeze(1) - ids / SIZE).square().mean()

    def training_step(self, batch):
        return self.step(batch)

    def validation_step(self, batch):
        return self.step(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches(dataset=Stream, world: int = 1, **options):
    return lambda: DataLoader(dataset(), batch_size=4, **options)


def ready(rank: int = 0, world: int = 1):
    parts = [torch.arange(i, min(i + 4, SIZE)) for i in range(4 * rank, SIZE, 4 * world)]
    return [(torch.stack([i.double(), i * 0 + 1], 1) / SIZE, i) for i in parts]


LIMITS = {"limit_train_batches": 10, "limit_val_batches": 5}
CASES = {
    "stream": (batches(), {"global_batch_size": 24}),
    "stream-workers": (batches(num_workers=2), {"global_batch_size": 24}),
    "stream-uneven": (batches(), {"global_batch_size": 22}),
    "sharing-workers": (batches(Sharing, num_workers=2), {"global_batch_size": 24}),
    "keeping": (batches(Keeping), {"global_batch_size": 24}),
    "mixture": (batches(lambda: Mixture({Stream(): 0.6, Numbers(): 0.4}, SIZE)), {"global_batch_size": 24}),
    "mixture-workers": (
        batches(lambda: Mixture({Stream(): 0.6, Numbers(): 0.4}, SIZE), num_workers=2),
        {"global_batch_size": 24},
    ),
    "mixture-keeping": (
        batches(lambda: Mixture({Keeping(): 0.6, Numbers(): 0.4}, SIZE)),
        {"global_batch_size": 24},
    ),
    "limited": (batches(), {"global_batch_size": 24} | LIMITS),
    "limited-map": (batches(Numbers, shuffle=True), {"global_batch_size": 24} | LIMITS),
    "list": (ready, {"accumulate": 6 // DEVICES}),
    "generator": (lambda: (b for b in ready()), {"accumulate": 6 // DEVICES, "max_epochs": 1}),
    "own-list": (lambda: ready(RANK, WORLD), {"accumulate": 6 // DEVICES}),
    "own-part": (batches(OwnPart), {"global_batch_size": 24}),
    "own-keeping": (batches(OwnKeeping), {"global_batch_size": 24}),
    "own-uneven": (batches(OwnUneven), {"global_batch_size": 24}),
    "own-arrays": (batches(OwnArrays, collate_fn=as_arrays), {"accumulate": 6 // DEVICES}),
    "own-part-uneven": (batches(OwnPart), {"global_batch_size": 22}),
    "one-for-rank-zero": (batches(OneForRankZero), {"global_batch_size": 24}),
    "ends-early": (batches(EndsEarly), {"global_batch_size": 24}),
    "ends-early-workers": (batches(EndsEarly, num_workers=2), {"global_batch_size": 24}),
    "ends-early-list": (lambda: ready()[: 25 - 5 * RANK], {}),
    "ends-early-val": (batches(), {"val": batches(EndsEarly)}),
    "last-batch-smaller": (batches(LastBatchSmaller), {"global_batch_size": 24}),
    "odd-sampler": (lambda: DataLoader(Numbers(), batch_size=4, sampler=Odd()), {}),
}
STOPPED_AT = 3
RESUMED = ["stream", "stream-workers", "keeping", "list", "mixture", "mixture-keeping"]
RESUMED += ["own-list", "own-part", "own-keeping", "own-uneven"]


def train(name: str, case: str, resume: str | None = None, **more) -> None:
    make, settings = CASES[case]
    make_val = settings.get("val", make)
    settings = {name: value for name, value in settings.items() if name != "val"}
    trainer = Trainer(
        accelerator="cpu",
        devices=DEVICES,
        precision="64",
        log_every=1,
        progress=False,
        loggers=["-tensorboard", "-curves"],
        callbacks=[Checkpoint(every=1000)],
        run_dir=FOLDER,
        name=name,
        **({"max_epochs": 2} | settings | more),
    )
    module = Model()
    error = None
    try:
        trainer.fit(module, make(), make_val(), resume=resume)
    except PacelineError as raised:
        error = str(raised)
    found = {
        "error": error,
        "weights": module.line.weight.flatten().tolist(),
    }
    (FOLDER / f"{name}-{trainer.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[3:]:
        if case.startswith("stop:"):
            train(f"{case[5:]}-moved", case[5:], max_steps=STOPPED_AT)
            continue
        if case.startswith("resume:"):
            train(f"{case[7:]}-moved", case[7:], "latest")
            continue
        train(case, case)
        if case in RESUMED:
            train(f"{case}-stopped", case, max_steps=STOPPED_AT)
            train(f"{case}-stopped", case, resume="latest")
