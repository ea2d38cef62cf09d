"""Where a value can be logged: it arrives, or an error says where it would."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint


class Net(TrainModule):
    """Logs ``value`` in the hooks and steps named."""

    def __init__(self, *places):
        super().__init__()
        self.net, self.places = nn.Linear(1, 1), places

    def note(self, place, value=2.5):
        if place in self.places:
            self.log("value", value)

    def training_step(self, batch):
        self.log("each", batch[0].mean())
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch):
        return self.net(batch[0]).square().mean()

    def predict_step(self, batch):
        self.note("predict_step", batch[0].mean())
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_setup(self, trainer, stage):
        self.note("on_setup")

    def on_fit_start(self, trainer):
        self.note("on_fit_start")

    def on_fit_end(self, trainer):
        self.note("on_fit_end")

    def on_predict_start(self, trainer):
        self.note("on_predict_start")

    def on_predict_end(self, trainer):
        self.note("on_predict_end")

    def on_exception(self, trainer, error):
        self.note("on_exception")

    def on_teardown(self, trainer, stage):
        self.note("on_teardown")


class Logs(Callback):
    def on_fit_end(self, trainer):
        trainer.log("of_callback", 7.0)


def loader():
    return DataLoader(TensorDataset(torch.arange(10.0).reshape(10, 1)), 4)


def trainer_for(folder, *callbacks, **settings):
    usual = {"accelerator": "cpu", "progress": False, "max_epochs": 1, "log_every": 100}
    return Trainer(
        run_dir=folder, loggers=["-tensorboard", "-curves"], callbacks=callbacks, **(usual | settings)
    )


def test_a_value_logged_when_the_fit_ends_is_a_row_and_a_metric(tmp_path):
    trainer = trainer_for(tmp_path, Logs())
    run = trainer.fit(Net("on_fit_end"), loader())
    assert trainer.metrics["train/value"] == 2.5
    assert trainer.metrics["train/of_callback"] == 7.0
    assert run.metrics["train/value"].values == [2.5]
    assert run.metrics["train/of_callback"].values == [7.0]
    assert run.metrics["train/of_callback"].steps == [3]


def test_what_is_logged_at_a_stop_leaves_the_sums_of_the_epoch_alone(tmp_path):
    """A stopped run resumes in the middle of a log window, with its sums."""

    class Stops(Callback):
        def on_step_end(self, trainer, outputs):
            if trainer.global_step == 2 and trainer.counters.samples == 8:
                trainer.stop("to be resumed")

    whole = trainer_for(tmp_path / "whole", Checkpoint()).fit(Net(), loader())
    trainer_for(tmp_path, Checkpoint(), Stops(), Logs(), name="n").fit(Net("on_fit_end"), loader())
    run = trainer_for(tmp_path, Checkpoint(), Logs(), name="n").fit(Net(), loader(), resume="latest")
    assert run.metrics["train/each_epoch"] == whole.metrics["train/each_epoch"]
    assert "train/value_epoch" not in run.metrics


def test_a_value_logged_in_predict_is_a_metric(tmp_path, capsys):
    trainer = trainer_for(tmp_path)
    trainer.predict(Net("predict_step"), loader())
    assert trainer.metrics["predict/value"] == 4.5  # the mean over samples, not over batches
    assert "predict: predict/value 4.5" in capsys.readouterr().out
    for place in ("on_predict_start", "on_predict_end"):
        trainer = trainer_for(tmp_path)
        assert len(trainer.predict(Net(place), loader())) == 3
        assert trainer.metrics == {"predict/value": 2.5}
    trainer = trainer_for(tmp_path)
    trainer.predict(Net("predict_step"), loader(), out=tmp_path / "out")
    assert trainer.metrics["predict/value"] == 4.5


def test_predicting_without_logging_prints_nothing(tmp_path, capsys):
    trainer = trainer_for(tmp_path)
    trainer.predict(Net(), loader())
    assert trainer.metrics == {}
    assert "predict:" not in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["fit", "validate", "predict"])
def test_logging_at_teardown_is_an_error_that_says_where_it_is_possible(stage, tmp_path):
    trainer = trainer_for(tmp_path)
    with pytest.raises(PacelineError, match="nothing can be logged") as raised:
        getattr(trainer, stage)(Net("on_teardown"), loader())
    assert "on_teardown" in str(raised.value)
    assert "on_fit_end" in str(raised.value)
    if stage == "fit":
        assert trainer.run.latest.name == "step-00000003"


@pytest.mark.parametrize("stage", ["validate", "predict"])
def test_logging_before_an_evaluation_is_an_error_too(stage, tmp_path):
    with pytest.raises(PacelineError, match="nothing can be logged"):
        getattr(trainer_for(tmp_path), stage)(Net("on_setup"), loader())


def test_logging_in_on_exception_is_a_note_on_the_error(tmp_path):
    class Fails(Net):
        def training_step(self, batch):
            raise ArithmeticError("of the user")

    with pytest.raises(ArithmeticError) as raised:
        trainer_for(tmp_path).fit(Fails("on_exception"), loader())
    assert any("nothing can be logged" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("place", ["on_setup", "on_fit_start"])
def test_what_is_logged_before_training_is_part_of_the_first_row(place, tmp_path):
    run = trainer_for(tmp_path).fit(Net(place), loader())
    assert run.metrics["train/value"].values == [2.5]
