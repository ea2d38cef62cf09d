"""batch_size="auto": the estimate says where to begin, trials find the largest micro-batch that fits."""

from __future__ import annotations

import json
import random
import re
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from helpers.jobs import load_job
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import DataModule, PacelineError, Trainer, TrainModule, tools
from paceline.trainer.tuning import micro_batch_search
from paceline.trainer.tuning.micro_batch_search import sizes_of

JOB = Path(__file__).parents[2] / "tools/tuning/tuning_job.py"
job = load_job(JOB)
Planted, Quadratic, loader, quiet = job.Planted, job.Quadratic, job.loader, job.quiet


class Wide(TrainModule):
    """Keeps 64 KiB of activations for each sample, in ReLUs of 4096 float32 numbers."""

    def __init__(self, most: int = 10**9) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(*[nn.Linear(1, 4096), *[nn.ReLU()] * 4, nn.Linear(4096, 1)])
        self.most, self.sizes = most, []

    def training_step(self, batch):
        x = batch[0]
        if type(x) is torch.Tensor:  # the estimate's are fake
            self.sizes.append(len(x))
            TRIED.append(len(x))
            if len(x) > self.most:
                raise torch.OutOfMemoryError("planted")
        return self.net(x).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)


TRIED: list[int] = []
X = torch.randn(600, 1, generator=torch.Generator().manual_seed(5))


def data(size=600, **options):
    return DataLoader(TensorDataset(X), size, **options)


def run(module, given, folder=None, **settings):
    TRIED.clear()
    usual = {"accelerator": "cpu", "progress": False, "run_dir": folder, "max_steps": 1, "loggers": False}
    usual |= {"checkpoint": False, "name": "n", "batch_size": "auto"}
    trainer = Trainer(**(usual | settings))
    trainer.fit(module, given)
    return trainer


def reported(folder):
    log = (folder / "n/1/log.txt").read_text()
    return re.findall(r'batch_size="auto": ([^\n]*)', log)[0]


@pytest.mark.parametrize("part", [*range(1, 40), 97, 512, 1000])
def test_each_size_is_the_largest_piece_of_an_even_cut(part):
    cuts = [-(-part // pieces) for pieces in range(1, part + 1)]
    assert sizes_of(part) == list(dict.fromkeys(cuts))


@pytest.fixture
def memory(monkeypatch):
    """Gives a CPU so much memory, as far as estimates see."""

    def give(size):
        found = psutil.virtual_memory()._replace(available=size)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: found)

    return give


def needs(size, accumulate):
    """By the estimate, with the memory that there is."""
    trainer = Trainer(accelerator="cpu", progress=False, run_dir=None, accumulate=accumulate)
    return tools.estimate(trainer, Wide(), data(size)).row("single").needed


@pytest.mark.parametrize("most", soaked([300, 120, 17, 1], [300, 17]))
def test_the_estimate_bounds_it_on_a_cpu(tmp_path, memory, most):
    """The largest of 600 / k samples whose bytes are within 95 % of the memory."""
    memory(int(needs(most, 2) / 0.95) + 4096)
    module = Wide()
    trainer = run(module, data(), tmp_path)
    assert trainer._fit.state.micro_batch == most
    assert max(TRIED) == most  # no trial was larger
    assert reported(tmp_path) == (
        f"a rank takes {most} of its 600 samples in a step at once; the estimate was {most}; {most} fits"
    )
    assert len(module.sizes) == -(-600 // most)
    assert sum(module.sizes) == 600


def test_trials_correct_the_estimate(tmp_path):
    trainer = run(Wide(most=70), data(), tmp_path)
    assert trainer._fit.state.micro_batch == 67
    assert reported(tmp_path) == (
        "a rank takes 67 of its 600 samples in a step at once; the estimate was 600; 600 does not fit, "
        "300 does not fit, 150 does not fit, 75 does not fit, 36 fits, 50 fits, 60 fits, 67 fits"
    )


def test_the_numbers_are_those_of_the_loader_s_batch():
    auto, plain = Planted(5), Quadratic()
    quiet(batch_size="auto", max_steps=4).fit(auto, loader(12))
    quiet(max_steps=4).fit(plain, loader(12))
    torch.testing.assert_close(auto.w, plain.w, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "size", "step"),
    [({}, 12, 12), ({"accumulate": 2}, 6, 12), ({"global_batch_size": 24}, 12, 24)],
)
def test_the_samples_of_a_step_stay_the_same(settings, size, step):
    module = Planted(4)
    trainer = quiet(batch_size="auto", max_steps=1, **settings)
    trainer.fit(module, loader(size))
    assert trainer._fit.state.micro_batch == 4
    assert trainer.counters.samples == step


def test_a_limit_on_batches_counts_the_loader_s(tmp_path):
    trainer = quiet(batch_size="auto", max_epochs=1, limit_train_batches=2)
    trainer.fit(Planted(2), loader(8))
    assert (trainer.counters.samples, trainer.global_step) == (16, 2)


def test_a_step_that_reads_values_is_tried_without_an_estimate(tmp_path):
    class Reads(Wide):
        def training_step(self, batch):
            self.largest = batch[0].max().item()
            return super().training_step(batch)

    trainer = run(Reads(), data(200), tmp_path, accumulate=3)
    assert trainer._fit.state.micro_batch == 200  # a CPU takes no more than the loader gave
    assert "PacelineError: an estimate runs the step without values" in reported(tmp_path)


def test_a_batch_of_one_sample_needs_no_search(tmp_path):
    run(Wide(), data(1), tmp_path)
    assert TRIED == [1]


class Source(DataModule):
    def __init__(self):
        super().__init__()
        self.calls = []

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(f"setup {stage}")
        self.dataset = TensorDataset(X)

    def train_dataloader(self):
        return DataLoader(self.dataset, 12)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0].repeat(1, 1)]

    def teardown(self, stage):
        self.calls.append(f"teardown {stage}")


def test_a_datamodule_prepares_its_data_once():
    source = Source()
    trainer = Trainer(
        batch_size="auto", max_steps=2, accelerator="cpu", progress=False, run_dir=None, checkpoint=False
    )
    trainer.fit(Wide(most=6), datamodule=source)
    assert trainer._fit.state.micro_batch == 6
    assert source.calls == ["prepare_data", "setup fit", "teardown fit"]


class Drawing(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.rand(1)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_a_search_leaves_no_trace_in_the_run(options):
    """Of the same micro-batches without a search."""

    class Noisy(Wide):
        def training_step(self, batch):
            loss = self.net(batch + torch.rand(1) + random.random() + np.random.random()).square().mean()
            if len(batch) > self.most:
                raise torch.OutOfMemoryError("planted")
            return loss

    found = []
    for most, settings, size in ((4, {"batch_size": "auto"}, 8), (99, {"global_batch_size": 8}, 4)):
        module = Noisy(most)
        trainer = quiet(precision="32", max_steps=4, seed=3, **settings)
        trainer.fit(module, DataLoader(Drawing(), size, shuffle=True, **options))
        found.append([p.tolist() for p in module.parameters()])
    assert found[0] == found[1]


def test_a_compiled_module_is_searched_as_it_is_written():
    module = Wide(most=100)
    trainer = run(module, data(200), compile={"backend": "eager"})
    assert trainer._fit.state.micro_batch == 100
    assert module.sizes == [100, 100]


def test_a_module_that_cannot_be_copied_is_not_tried(tmp_path):
    module = Wide(most=100)
    module.lock = threading.Lock()
    trainer = run(module, data(200), tmp_path)
    assert "a trial was not possible (TypeError: cannot pickle" in reported(tmp_path)
    assert module.sizes == [200, 100, 100]  # the first step did not fit
    assert trainer._fit.state.micro_batch == 100


def test_a_step_that_needs_the_run_itself_is_not_tried(tmp_path):
    class Writes(Wide):
        def training_step(self, batch):
            (self.trainer.folder / "mine.txt").touch()
            return super().training_step(batch)

    trainer = run(Writes(), data(200), tmp_path)
    assert "a trial was not possible (TypeError: unsupported operand" in reported(tmp_path)
    assert trainer._fit.state.micro_batch == 200
    assert (trainer.folder / "mine.txt").exists()


def test_a_trainer_with_arguments_of_its_own(tmp_path):
    class Mine(Trainer):
        def __init__(self, size):
            usual = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
            super().__init__(batch_size=size, run_dir=tmp_path, name="n", max_steps=1, **usual)

    trainer = Mine("auto")
    trainer.fit(Wide(), data(200))
    assert trainer._fit.state.micro_batch == 200
    assert "a trial was not possible (TypeError: " in reported(tmp_path)


def test_an_error_of_the_step_is_the_user_s():
    class Wrong(Wide):
        def training_step(self, batch):
            return self.net(batch[0].T).mean()

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised:
        run(Wrong(), data(8))
    assert "\n".join(raised.value.__notes__).count("step 1, epoch 1") == 1


def test_find_learning_rate_uses_it_too():
    module = Wide(most=5)
    trainer = Trainer(batch_size="auto", accelerator="cpu", progress=False, run_dir=None)
    TRIED.clear()
    tools.find_learning_rate(trainer, module, data(10), steps=10, lowest=1e-9, highest=1e-8)
    assert TRIED[-20:] == [5] * 20


def test_a_number_is_the_loader_s():
    with pytest.raises(PacelineError, match="a number is the DataLoader's batch_size or global_batch_size"):
        Trainer(batch_size=32)


def test_a_device_must_hold_what_the_ranks_need_besides():
    found = object.__new__(micro_batch_search._Search)
    found._room = 30
    found._context = type("C", (), {"strategy": type("S", (), {"device": torch.device("cpu")})})
    trial = micro_batch_search.BatchSizeTrial(8, True, 10**15, 1.0)
    assert not found._leaves_room(trial)


def test_ranks_agree(tmp_path):
    run_ranks(JOB, 2, tmp_path, "micro-batch", folder=tmp_path)
    found = [json.loads((tmp_path / f"micro-batch-{rank}.json").read_text()) for rank in range(2)]
    assert [one["micro_batch"] for one in found] == [4, 4]
    assert "6 does not fit, 3 fits, 4 fits" in found[0]["log"]
    assert "global batch 24 = 4 samples x 2 ranks x 3 micro-batches" in found[0]["log"]


def test_a_replay_takes_the_micro_batches_of_the_run(tmp_path):
    folder = run(Wide(most=5), data(10), tmp_path, max_steps=3).folder
    module = Wide()
    again = Trainer(batch_size="auto", accelerator="cpu", progress=False, run_dir=None)
    TRIED.clear()
    found = tools.replay(again, module, data(10), step=2, run=folder)
    assert TRIED == [5] * 4
    assert len(found.losses) == 2
