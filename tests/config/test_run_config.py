"""``RunConfig.make_trainer``: a recipe's defaults, and the config's arguments before them."""

import pytest

from paceline import PacelineError
from paceline.callbacks import EMA, Checkpoint, EarlyStopping
from paceline.config import RunConfig

QUIET = {"run_dir": None, "progress": False}


def made(trainer, **defaults):
    return RunConfig(trainer=QUIET | trainer).make_trainer(**defaults)


def of(trainer, cls):
    return [one for one in trainer.callbacks if isinstance(one, cls)]


def test_arguments_of_the_config_take_precedence():
    trainer = made({"max_epochs": 2}, max_epochs=5, accumulate=3)
    assert (trainer.settings.max_epochs, trainer.settings.accumulate) == (2, 3)


@pytest.mark.parametrize("given", ["checkpoint", ["Checkpoint"], [{"class": "Checkpoint", "keep": 7}]])
def test_a_callback_of_the_config_replaces_the_recipes(given):
    trainer = made({"callbacks": given}, callbacks=[Checkpoint(monitor="val/loss"), EMA()])
    (kept,) = of(trainer, Checkpoint)
    assert kept.monitor is None
    assert len(of(trainer, EMA)) == 1


def test_callbacks_of_one_class_and_two_names_are_kept():
    named = {"class": "EarlyStopping", "monitor": "val/accuracy", "name": "accuracy"}
    trainer = made({"callbacks": [named]}, callbacks=[EarlyStopping("val/loss")])
    assert sorted(one.monitor for one in of(trainer, EarlyStopping)) == ["val/accuracy", "val/loss"]


def test_objects_are_built_for_each_trainer():
    config = RunConfig(trainer=QUIET | {"callbacks": [{"class": "EMA", "decay": 0.5}]})
    first, second = (of(config.make_trainer(), EMA)[0] for _ in range(2))
    assert first is not second


def test_what_is_wrong_is_one_report():
    with pytest.raises(PacelineError, match="config: 2 invalid settings"):
        made({"callbacks": [{"class": "emma"}], "strategy": {"class": "fspd"}})


def test_the_configuration_is_recorded_in_the_run(tmp_path):
    trainer = RunConfig(trainer={"run_dir": str(tmp_path), "max_epochs": 1}).make_trainer()
    assert trainer.settings.source == {"trainer": {"run_dir": str(tmp_path), "max_epochs": 1}}


def test_a_default_logger_is_turned_off_by_its_name():
    trainer = made({"loggers": ["-tensorboard", "csv"]})
    names = [type(one).__name__ for one in trainer.callbacks]
    assert "CSVLogger" in names
    assert "TensorBoard" not in names
