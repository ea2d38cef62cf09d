"""The seed of a Trainer that is given none: that of the last seed_everything of the script."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from helpers.ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule, seed_everything
from paceline.callbacks import Callback

JOB = Path(__file__).parent / "seed_job.py"


class Noisy(TrainModule):
    """Its order of samples and its dropout follow the run's seed; its weights are always the same."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)
        nn.init.ones_(self.net.weight)
        self.seen = []

    def training_step(self, batch):
        self.seen += batch[0].flatten().tolist()
        self.seen.append(torch.rand(()).item())
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def seen(**settings):
    module = Noisy()
    trainer = Trainer(max_epochs=1, progress=False, loggers=False, checkpoint=False, **settings)
    trainer.fit(module, DataLoader(TensorDataset(torch.arange(32.0)[:, None]), 4, shuffle=True))
    return module.seen, yaml.safe_load((trainer.folder / "config.yaml").read_text())["trainer"]["seed"]


def test_without_any_the_seed_is_zero():
    assert seen() == (seen(seed=0)[0], 0)


def test_the_script_s_seed_is_the_default():
    expected = {seed: seen(seed=seed)[0] for seed in (1, 2)}
    assert expected[1] != expected[2]
    for seed in (1, 2):
        seed_everything(seed)
        assert seen() == (expected[seed], seed)
        assert seen() == (expected[seed], seed)  # a fit before changes nothing
    assert seen(seed=1) == (expected[1], 1)


def test_it_is_read_when_the_trainer_is_made():
    seed_everything(5)
    trainer = Trainer()
    seed_everything(6)
    assert (trainer.settings.seed, Trainer().settings.seed) == (5, 6)


def test_the_largest_seed_serves():
    seed_everything(2**64 - 1)
    assert Trainer().settings.seed == 2**63 - 1


def test_workers_are_taken_as_others_have_them():
    assert seed_everything(7, workers=True) == 7
    first = torch.rand(())
    assert seed_everything(7, workers=False) == 7
    assert torch.equal(first, torch.rand(()))
    with pytest.raises(PacelineError, match="workers: got 'yes'"):
        seed_everything(7, workers="yes")


class StopAfter(Callback):
    def on_step_end(self, trainer):
        if trainer.global_step == 3:
            trainer.stop("enough")


def interrupted(**settings):
    """Eight steps: three, and what a script that gives ``settings`` does when it resumes."""
    common = {"max_epochs": 1, "progress": False, "loggers": False, "name": "n"}
    data = DataLoader(TensorDataset(torch.arange(32.0)[:, None]), 4, shuffle=True)
    first, second = Noisy(), Noisy()
    Trainer(**common, callbacks=StopAfter()).fit(first, data)
    seed_everything(9)
    trainer = Trainer(**common, **settings)
    trainer.fit(second, data, resume="auto")
    return first.seen + second.seen, trainer


def test_a_resumed_run_keeps_its_seed_where_the_trainer_is_given_none(capsys):
    expected = seen(seed=4)[0]
    seed_everything(4)
    found, trainer = interrupted()
    assert found == expected
    assert trainer.config["trainer"]["seed"] == 4
    assert "the seed is" not in capsys.readouterr().out


def test_another_seed_that_is_given_is_reported(capsys):
    expected = seen(seed=4)[0]
    seed_everything(4)
    found, trainer = interrupted(seed=5)
    assert found != expected
    assert trainer.config["trainer"]["seed"] == 5
    printed = capsys.readouterr().out
    assert "note: the seed is 5, in the checkpoint 4: samples come in another order" in printed


def test_each_rank_has_the_script_s_seed(tmp_path):
    done = run_ranks(JOB, 2, tmp_path, folder=tmp_path)
    assert done.codes == [0, 0], done.output
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found == [11, 11]
