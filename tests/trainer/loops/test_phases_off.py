"""A limit of 0 switches a phase off: no loader is built, one line reports it, the data is not blamed."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import DataModule, PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint, EarlyStopping

KINDS = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.net, self.steps = nn.Linear(1, 1), []

    def step(self, batch):
        self.steps.append(self.trainer.stage)
        return self.net(batch[0]).square().mean()

    training_step = validation_step = test_step = predict_step = step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(DataModule):
    """Notes which loaders were asked for."""

    def __init__(self):
        self.made = []

    def loader(self, kind):
        self.made.append(kind)
        return DataLoader(TensorDataset(torch.arange(8.0).reshape(8, 1)), 4)

    def train_dataloader(self):
        return self.loader("train")

    def val_dataloader(self):
        return self.loader("val")

    def test_dataloader(self):
        return self.loader("test")

    def predict_dataloader(self):
        return self.loader("predict")


def trainer_for(**settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_epochs": 1}
    return Trainer(**(usual | settings))


@pytest.mark.parametrize("limit", [0, 0.0])
@pytest.mark.parametrize("stage", KINDS)
def test_the_phase_is_off_and_one_line_reports_it(stage, limit, capsys):
    module, data, name = Net(), Data(), f"limit_{KINDS[stage]}_batches"
    before = module.net.weight.clone()
    trainer = trainer_for(**{name: limit})
    found = getattr(trainer, stage)(module, datamodule=data)
    assert KINDS[stage] not in data.made
    assert module.steps.count(stage) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"{name}=0") == 1
    assert "empty" not in printed
    assert found == {"validate": {}, "test": {}, "predict": []}.get(stage, found)
    assert torch.equal(module.net.weight, before)
    assert trainer.global_step == 0


def test_training_goes_without_validation(capsys):
    module, data = Net(), Data()
    trainer = trainer_for(limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    assert data.made == ["train"]
    assert trainer.global_step == 2
    assert capsys.readouterr().out.count("limit_val_batches=0") == 1


def test_predictions_of_nothing_can_be_written(tmp_path):
    written = trainer_for(limit_predict_batches=0).predict(Net(), datamodule=Data(), out=tmp_path / "out")
    assert list(written) == []


def test_a_run_resumes_with_training_off(tmp_path):
    settings = {"run_dir": tmp_path, "name": "n"}
    first = trainer_for(**settings, checkpoint=True)
    first.fit(Net(), datamodule=Data())
    data = Data()
    trainer = trainer_for(**settings, limit_train_batches=0, max_epochs=9)
    trainer.fit(Net(), datamodule=data, resume="latest")
    assert trainer.global_step == 2
    assert "train" not in data.made


# -- validations that would come after the end -----------------------------------------------------


LATE = [
    ({"validate_every": 100, "max_epochs": 3}, "validate_every=100", "6 steps"),
    ({"validate_every": "7st", "max_steps": 6, "max_epochs": None}, "validate_every=7st", "6 steps"),
    ({"validate_every": "2ep", "max_epochs": 1}, "validate_every=2ep", "2 steps"),
    ({"validate_every": "2h", "max_time": "1h"}, "validate_every=2h", "max_time=1h"),
]


@pytest.mark.parametrize(("settings", "given", "length"), LATE)
@pytest.mark.parametrize("callback", [EarlyStopping, Checkpoint])
def test_a_monitor_that_would_never_get_a_value_is_named_before_step_1(
    callback, settings, given, length, capsys
):
    class Prints(Net):
        def on_fit_start(self, trainer):
            trainer.log_line("begins")
            trainer.stop("seen")

    data = DataLoader(TensorDataset(torch.arange(8.0).reshape(8, 1)), 4)
    trainer = trainer_for(callbacks=callback(monitor="val/loss"), **settings)
    trainer.fit(Prints(), data, data)
    before, _, _ = capsys.readouterr().out.partition("begins")
    (line,) = [line for line in before.splitlines() if "never get a value" in line]
    assert given in line
    assert length in line
    assert f"{callback.__name__} watches 'val/loss'" in line


@pytest.mark.parametrize(
    "settings",
    [
        {"validate_every": 6, "max_epochs": 3},
        {"validate_every": "1ep", "max_epochs": 1},
        {"validate_every": "0.5ep", "max_epochs": 1},
        {"validate_every": "2ep", "max_steps": 4, "max_epochs": None},
        {"validate_every": "2h", "max_epochs": 1},
        {"validate_every": 100, "max_epochs": 3, "callbacks": EarlyStopping("train/loss_epoch")},
    ],
)
def test_nothing_is_reported_where_it_may_get_one(settings, capsys):
    class Stops(Net):
        def on_fit_start(self, trainer):
            trainer.stop("seen")

    data = DataLoader(TensorDataset(torch.arange(8.0).reshape(8, 1)), 4)
    trainer_for(**({"callbacks": EarlyStopping("val/loss")} | settings)).fit(Stops(), data, data)
    assert "never get a value" not in capsys.readouterr().out


def test_data_that_is_empty_is_still_an_error():
    empty = DataLoader(TensorDataset(torch.zeros(0, 1)), 4)
    with pytest.raises(PacelineError, match="no batch"):
        trainer_for().fit(Net(), empty)
