"""A run stopped after any step and resumed ends bit-identical to one that was never stopped."""

import random

import numpy as np
import pytest
import torch
from helpers.pairwise import soaked
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, EarlyStopping
from paceline.callbacks.loggers.series import read_rows

EPOCHS, SAMPLES, BATCH = 2, 22, 4
STEPS_PER_EPOCH = 6
TIMED = {"time", "perf/samples_per_second"}


class Augmented(Dataset):
    """Draws from all three generators."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(SAMPLES, 5, generator=generator)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = torch.randn(5) + random.random() + float(np.random.rand())
        return self.x[index] + 0.1 * noise, int(self.x[index, 0] > 0)


class Stream(IterableDataset):
    def __iter__(self):
        for x, y in (Augmented()[i] for i in range(SAMPLES)):
            yield x + torch.rand(5), y


class Noisy(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.net = nn.Sequential(
            nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 2)
        )

    def training_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        return {"loss": loss, "noise": torch.rand(())}

    def validation_step(self, batch):
        x, y = batch
        torch.rand(3)  # draws of validation must not reach training
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        total = self.trainer.total_steps or EPOCHS * STEPS_PER_EPOCH  # a stream has no length
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=total + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class StopAfter(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer):
        if trainer.global_step == self.step:
            trainer.stop("far enough")


def make_trainer(folder, stop_after=None, **arguments):
    stopping = [StopAfter(stop_after)] if stop_after else []
    settings = {
        "accelerator": "cpu",
        "max_epochs": EPOCHS,
        "log_every": 3,
        "progress": False,
        "loggers": ["-tensorboard", "-curves"],
        "callbacks": [EarlyStopping("val/loss", patience=10), Checkpoint(monitor="val/loss"), *stopping],
        "run_dir": folder,
        "name": "run",
    }
    return Trainer(**(settings | arguments))


def fit(folder, loader, *, module=None, **arguments):
    module = module or Noisy()
    resume = arguments.pop("resume", None)
    trainer = make_trainer(folder, **arguments)
    run = trainer.fit(module, loader(), DataLoader(Augmented(), 8), resume=resume)
    return module, trainer, run


def final(module, trainer):
    """Everything that must be the same at the end."""
    optimizer = trainer.optimizers[0]
    tensors = {**module.state_dict()}
    for index, state in enumerate(optimizer.state.values()):
        tensors |= {f"{index}.{key}": value for key, value in state.items()}
    plain = {
        "scheduler": trainer.lr_schedulers[0].state_dict(),
        "callbacks": [c.state_dict() for c in trainer.callbacks if isinstance(c, EarlyStopping)],
        "metrics": {k: v for k, v in trainer.metrics.items() if k not in TIMED},
        "rng": (torch.rand(3).tolist(), random.random(), np.random.rand()),
    }
    return tensors, plain


def rows(run):
    lines = read_rows(run.folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMED} for row in lines]


def assert_same(left, right):
    (tensors, plain), (others, other_plain) = left, right
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        assert torch.equal(value, others[name]), name
    assert plain == other_plain


LOADERS = {
    "workers0": lambda: DataLoader(Augmented(), BATCH, shuffle=True),
    "workers2": lambda: DataLoader(Augmented(), BATCH, shuffle=True, num_workers=2),
    "stream": lambda: DataLoader(Stream(), BATCH),
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """One whole run for each loader."""
    runs = {}
    for name, loader in LOADERS.items():
        module, trainer, run = fit(tmp_path_factory.mktemp(name), loader)
        runs[name] = (final(module, trainer), rows(run))
    return runs


STOPS = [(name, at) for name in LOADERS for at in range(1, EPOCHS * STEPS_PER_EPOCH)]
# One loader is stopped after every step, the others within the second epoch.
USUAL = [(name, at) for name, at in STOPS if name == "workers0" or at == 9]


@pytest.mark.parametrize(("name", "stop_at"), soaked(STOPS, USUAL))
def test_stop_after_any_step_and_resume(name, stop_at, uninterrupted, tmp_path):
    expected, expected_rows = uninterrupted[name]
    _, stopped, _ = fit(tmp_path, LOADERS[name], stop_after=stop_at)
    assert stopped.global_step == stop_at
    module, trainer, run = fit(tmp_path, LOADERS[name], resume="latest")
    assert trainer.global_step == EPOCHS * STEPS_PER_EPOCH
    assert_same(final(module, trainer), expected)
    # The rows of both sessions together are those of the whole run, but for windows cut at the stop.
    assert rows(run)[-1] == expected_rows[-1]
    assert [r["step"] for r in rows(run)] == [r["step"] for r in expected_rows]


def test_worker_count_changes_nothing(uninterrupted):
    assert_same(uninterrupted["workers0"][0], uninterrupted["workers2"][0])
    assert uninterrupted["workers0"][1] == uninterrupted["workers2"][1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"accumulate": 2, "clip_grad_norm": 0.1},
        {"precision": "fp16"},
        {"precision": "bf16"},
    ],
    ids=str,
)
def test_stop_and_resume_with(arguments, tmp_path):
    loader = LOADERS["workers0"]
    module, trainer, _ = fit(tmp_path / "whole", loader, **arguments)
    expected, state = final(module, trainer), trainer.strategy.precision.state_dict()
    fit(tmp_path / "cut", loader, stop_after=2, **arguments)
    module, trainer, _ = fit(tmp_path / "cut", loader, resume="auto", **arguments)
    assert_same(final(module, trainer), expected)
    assert trainer.strategy.precision.state_dict() == state


@pytest.mark.fault(24)
def test_the_checkpoints_global_batch_holds(tmp_path):
    """Another batch size and accumulation: no sample is lost or repeated, the numbers stay."""
    module, trainer, _ = fit(tmp_path / "whole", LOADERS["workers0"])
    expected = final(module, trainer)[0]
    seen = []

    class Recorder(Noisy):
        def on_step_start(self, trainer, batches):
            seen.append(sum(len(y) for _, y in batches))

    fit(tmp_path / "cut", LOADERS["workers0"], stop_after=2)
    module, trainer, _ = fit(
        tmp_path / "cut",
        lambda: DataLoader(Augmented(), 64, shuffle=True),
        module=Recorder(),
        resume="latest",
    )
    assert seen == [4, 4, 4, 2, 4, 4, 4, 4, 4, 2]
    tensors = final(module, trainer)[0]
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
