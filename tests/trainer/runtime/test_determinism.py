"""What cannot be exact is said; what torch offers to make it so is switched on for the run alone."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import Trainer, TrainModule, seed_everything


class Model(TrainModule):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), *layers, nn.Linear(4, 1))
        self.seen: list[tuple[bool, bool]] = []

    def step(self, batch):
        enabled = torch.are_deterministic_algorithms_enabled()
        self.seen.append((enabled, torch.backends.cudnn.benchmark))
        return self.net(batch[0]).square().mean()

    def training_step(self, batch):
        return self.step(batch)

    def validation_step(self, batch):
        return self.step(batch)

    def predict_step(self, batch):
        return self.step(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4)


def notes(capsys, *layers: nn.Module, prepare=lambda module: None, **settings) -> list[str]:
    module = Model(*layers)
    prepare(module)
    Trainer(max_epochs=2, progress=False, loggers=False, checkpoint=False, **settings).fit(module, loader())
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("note: ")]


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.AlphaDropout(0.1), nn.Dropout1d(0.1)])
def test_dropout_over_several_micro_batches_is_said_once(layer, capsys):
    (note,) = notes(capsys, layer, accumulate=2)
    assert "dropout draws separately for each rank and micro-batch" in note


def test_batch_norm_over_several_micro_batches_is_said_once(capsys):
    (note,) = notes(capsys, nn.BatchNorm1d(4), nn.Dropout(0.5), accumulate=2)
    assert "batch norms take a micro-batch's statistics" in note
    assert "dropout" in note
    assert "sync_batchnorm" not in note  # there are no ranks it could sync


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.LayerNorm(4), nn.GELU()])
def test_what_is_exact_is_not_spoken_of(layer, capsys):
    assert notes(capsys, layer, accumulate=2) == []


def test_one_batch_is_what_all_else_is_compared_with(capsys):
    assert notes(capsys, nn.Dropout(0.5), nn.BatchNorm1d(4)) == []


def test_layers_that_do_not_train_neither_draw_nor_mix(capsys):
    def freeze(module):
        module.net[1].eval()

    assert notes(capsys, nn.Dropout(0.5), prepare=freeze, accumulate=2) == []


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_algorithms_are_on_inside_and_as_before_after(before, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(before, warn_only=before)
    try:
        trainer = Trainer(max_epochs=1, progress=False, deterministic=True)
        module = Model()
        trainer.fit(module, loader(), loader())
        trainer.validate(module, loader())
        trainer.predict(module, loader())
        assert set(module.seen) == {(True, False)}
        assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled() == before
        assert torch.is_deterministic_algorithms_warn_only_enabled() == before
        assert torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)


def test_they_are_put_back_after_an_error_too():
    class Failing(Model):
        def training_step(self, batch):
            raise KeyError("mine")

    with pytest.raises(KeyError):
        Trainer(max_epochs=1, progress=False, deterministic=True).fit(Failing(), loader())
    assert not torch.are_deterministic_algorithms_enabled()


def test_without_it_nothing_is_switched():
    module = Model()
    Trainer(max_epochs=1, progress=False).fit(module, loader())
    assert {enabled for enabled, _ in module.seen} == {False}


@pytest.mark.parametrize("validates", [None, "1st"])
def test_a_half_drawn_pair_of_normal_numbers_outlives_validation_and_reading(tmp_path, validates):
    """numpy draws two at once and keeps the second: nothing that puts states back may lose it."""

    class Items(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.ones(1)

    class Drawing(TrainModule):
        def __init__(self):
            super().__init__()
            self.scale, self.drawn = nn.Parameter(torch.ones(1)), []

        def training_step(self, batch):
            self.drawn.append(np.random.randn())
            return (self.scale * batch).sum()

        def validation_step(self, batch):
            np.random.randn()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Drawing()
    trainer = Trainer(
        run_dir=tmp_path, accelerator="cpu", max_epochs=1, progress=False, loggers=False, checkpoint=False,
        validate_every=validates, sanity_val_batches=0,
    )  # fmt: skip
    loader = DataLoader(Items(), 1)
    trainer.fit(module, loader, loader)
    seed_everything(0)
    assert module.drawn == [np.random.randn() for _ in range(8)]
