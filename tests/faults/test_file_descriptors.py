"""Loader workers that would need more open files than the process may have."""

import errno
import json
import os
import resource
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline import PacelineError, Trainer, TrainModule


class Samples(Dataset):
    def __init__(self, fails=None):
        self.fails = fails

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.fails is not None and index == 5:
            raise self.fails
        return torch.zeros(3)


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.zeros(64, 3)


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net, self.steps = nn.Linear(3, 1), 0

    def training_step(self, batch):
        self.steps += 1
        return self.net(batch).square().mean()

    def validation_step(self, batch):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@contextmanager
def files_limited(more):
    """At most so many files more than are open now."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/dev/fd")) + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, usual[1]))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def fit(module, train, val=None):
    settings = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 1}
    Trainer(**settings).fit(module, train, val)


@pytest.mark.fault(42)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("kind", ["train", "stream", "val"])
def test_the_limit_is_named_before_step_1_with_what_to_do(kind):
    module = Net()
    many = DataLoader(Stream() if kind == "stream" else Samples(), 4, num_workers=30)
    few = DataLoader(Samples(), 4)
    with files_limited(80) as limit, pytest.raises(PacelineError) as raised:
        fit(module, *((few, many) if kind == "val" else (many,)))
    text = str(raised.value)
    assert "too few files may be open for 30 loader workers" in text
    assert f"a limit of {limit} (ulimit -n)" in text
    assert "ulimit -n 1024" in text
    assert "num_workers=" in text
    assert module.steps == 0


@pytest.mark.fault(42)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_number_of_workers_that_is_suggested_works():
    with files_limited(60), pytest.raises(PacelineError) as raised:
        fit(Net(), DataLoader(Samples(), 4, num_workers=30))
    workers = int(str(raised.value).rpartition("num_workers=")[2])
    assert 2 <= workers < 10
    module = Net()
    with files_limited(62):
        fit(module, DataLoader(Samples(), 4, num_workers=workers))
    assert module.steps == 16


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("received 0 items of ancdata")]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_for_want_of_files_while_reading_names_the_limit(error, workers):
    with pytest.raises((OSError, RuntimeError)) as raised:
        fit(Net(), DataLoader(Samples(error), 4, num_workers=workers))
    notes = json.dumps(raised.value.__notes__)
    assert "(ulimit -n)" in notes
    assert "fewer workers" in notes
