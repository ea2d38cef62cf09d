"""EarlyStopping: patience, what counts as better, state over a resume."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint, EarlyStopping


class Scripted(TrainModule):
    """Validates with the next value of a script, whatever it learned."""

    def __init__(self, values, name="loss"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.values, self.name = values, name

    def training_step(self, batch):
        return self.weight * batch[0].mean()

    def validation_step(self, batch):
        self.log(self.name, self.values[self.epoch])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader():
    return DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2)


def fit(stopping, values, name="loss", resume=None, **settings):
    settings = {"max_epochs": len(values), "checkpoint": False} | settings
    more = settings.pop("callbacks", [])
    trainer = Trainer(callbacks=[stopping, *more], progress=False, loggers=False, **settings)
    trainer.fit(Scripted(values, name), loader(), loader(), resume=resume)
    return trainer


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (2, 4), (3, 5)])
def test_it_stops_when_wait_reaches_patience(patience, epochs):
    stopping = EarlyStopping("val/loss", patience=patience)
    trainer = fit(stopping, [5.0, 4.0, 4.0, 4.5, 4.0, 4.0, 4.0, 4.0])
    assert trainer.epoch == epochs
    assert (stopping.wait, stopping.best) == (patience, 4.0)
    assert trainer.stop_reason.startswith("early stopping: val/loss was best at 4")


def test_a_better_value_begins_the_wait_again():
    stopping = EarlyStopping("loss", patience=2)
    trainer = fit(stopping, [5.0, 6.0, 4.0, 6.0, 3.0, 6.0, 6.0, 6.0])
    assert trainer.epoch == 7
    assert stopping.best == 3.0


def test_it_never_stops_a_run_that_gets_better():
    trainer = fit(EarlyStopping("loss", patience=1), [5.0, 4.0, 3.0, 2.0])
    assert trainer.stop_reason == "max_epochs=4 reached"


def test_it_counts_validations_not_epochs():
    stopping = EarlyStopping("loss", patience=2)
    trainer = fit(stopping, [1.0, 1.0, 1.0, 1.0], validate_every=1)
    assert trainer.global_step == 3  # the first sets the mark, the second and third wait


def test_the_sanity_pass_does_not_count():
    stopping = EarlyStopping("loss", patience=1)
    trainer = fit(stopping, [1.0, 0.5, 0.7, 0.1], sanity_val_batches=2)
    assert trainer.epoch == 3


def test_min_delta_must_be_exceeded():
    stopping = EarlyStopping("loss", patience=3, min_delta=0.25)
    fit(stopping, [1.0, 0.75, 0.5])  # 0.75 is better by no more than it; 0.5 is
    assert (stopping.best, stopping.wait) == (0.5, 0)
    stopping = EarlyStopping("accuracy", patience=2, min_delta=0.25)
    trainer = fit(stopping, [0.5, 0.75, 0.7, 0.9], name="accuracy")
    assert (trainer.epoch, stopping.best) == (3, 0.5)


@pytest.mark.parametrize(
    "name",
    [
        "loss",
        "val_loss",
        "val/error",
        "perplexity",
        "train/loss_epoch",
        "val/clean/loss",
        "mean_error",
        "rmse",
    ],
)
def test_names_that_want_to_be_small(name):
    assert EarlyStopping(name)._monitor.mode == "min"


@pytest.mark.parametrize(
    "name",
    [
        "accuracy",
        "val/acc",
        "f1",
        "auc",
        "val_iou",
        "bleu",
        "acc_top1",
        "val/F1",
        "auroc",
        "val/r2",
        "psnr",
    ],
)
def test_names_that_want_to_be_large(name):
    assert EarlyStopping(name)._monitor.mode == "max"


@pytest.mark.parametrize("name", ["score", "val/reward", "floss", "accent"])
def test_any_other_name_asks_for_the_mode(name):
    with pytest.raises(PacelineError, match="not clear from its name") as raised:
        EarlyStopping(name)
    assert "mode='min' or mode='max'" in str(raised.value)
    assert EarlyStopping(name, "max").monitor == (name if "/" in name else f"val/{name}")


def test_a_given_mode_wins_over_the_name():
    stopping = EarlyStopping("loss", mode="max", patience=1)
    assert fit(stopping, [1.0, 2.0, 1.5, 9.0]).epoch == 3


@pytest.mark.parametrize(
    "arguments",
    [{"mode": "smallest"}, {"patience": 0}, {"patience": 1.5}, {"patience": True}, {"min_delta": -1}],
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(
        PacelineError, match=rf"EarlyStopping: 1 invalid argument\n  {next(iter(arguments))}"
    ):
        EarlyStopping("loss", **arguments)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_stops_at_once(value):
    trainer = fit(EarlyStopping("loss", patience=9), [1.0, value, 1.0])
    assert trainer.epoch == 2
    assert trainer.stop_reason == f"early stopping: val/loss is {value}"


def test_values_that_are_not_finite_can_be_waited_through():
    stopping = EarlyStopping("loss", patience=2, check_finite=False)
    trainer = fit(stopping, [1.0, math.nan, 0.5, math.nan, math.inf, 0.1])
    assert (trainer.epoch, stopping.best) == (5, 0.5)


def test_nothing_but_nan_stops_in_order_too():
    trainer = fit(EarlyStopping("loss", patience=2, check_finite=False), [math.nan] * 4)
    assert trainer.epoch == 2
    assert trainer.stop_reason.startswith("early stopping: val/loss")


def test_a_training_value_is_looked_at_after_each_epoch():
    class Level(Scripted):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    stopping = EarlyStopping("train/loss_epoch", patience=2)
    trainer = Trainer(progress=False, loggers=False, checkpoint=False, callbacks=stopping, max_epochs=9)
    trainer.fit(Level([0.0]), loader())
    assert (trainer.epoch, stopping.best) == (3, 1.0)


def test_a_name_nobody_logs_is_reported_in_the_sanity_pass():
    with pytest.raises(PacelineError, match="'val/accuracy', which validation does not log") as raised:
        fit(EarlyStopping("accuracy"), [1.0, 1.0])
    assert "got: logged: val/loss" in str(raised.value)


def test_without_validation_it_is_reported_before_training():
    trainer = Trainer(progress=False, loggers=False, checkpoint=False, callbacks=EarlyStopping("loss"))
    with pytest.raises(PacelineError, match="this run has no validation"):
        trainer.fit(Scripted([1.0]), loader())
    assert trainer.global_step == 0


def test_its_count_continues_over_a_resume(tmp_path):
    values = [3.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    settings = {"run_dir": tmp_path, "callbacks": [Checkpoint()]}
    fit(EarlyStopping("loss", patience=3), values, max_epochs=3, **settings)
    stopping = EarlyStopping("loss", patience=3)
    trainer = fit(stopping, values, resume="latest", run_dir=tmp_path, callbacks=[Checkpoint()])
    assert trainer.epoch == 5  # one wait before the resume, two after it
    assert (stopping.best, stopping.wait) == (1.0, 3)


def test_settings_come_from_the_new_trainer_at_a_resume(tmp_path):
    values = [1.0, 2.0, 2.0, 2.0, 2.0]
    fit(EarlyStopping("loss", patience=9), values, max_epochs=2, run_dir=tmp_path, callbacks=[Checkpoint()])
    stopping = EarlyStopping("loss", patience=2)
    trainer = fit(stopping, values, resume="latest", run_dir=tmp_path, callbacks=[Checkpoint()])
    assert trainer.epoch == 3


def test_a_second_fit_counts_from_the_beginning():
    stopping = EarlyStopping("loss", patience=2)
    trainer = fit(stopping, [1.0, 2.0, 2.0, 2.0])
    assert trainer.epoch == 3
    trainer.fit(Scripted([5.0, 6.0, 6.0, 6.0]), loader(), loader())
    assert (trainer.epoch, stopping.best) == (3, 5.0)


def test_two_of_them_need_names():
    with pytest.raises(PacelineError, match="give each a name="):
        Trainer(callbacks=[EarlyStopping("loss"), EarlyStopping("accuracy")])
    both = [EarlyStopping("loss", name="a"), EarlyStopping("val/error", name="b")]
    assert [callback.state_key for callback in Trainer(callbacks=both).callbacks[:2]] == ["a", "b"]
