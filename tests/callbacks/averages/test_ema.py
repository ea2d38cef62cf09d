"""EMA: its weights against a plain loop, where they are used, saved and resumed, on any strategy."""

import os
import signal

import pytest
import torch
from helpers.averages import (
    STEPS,
    Net,
    assert_same,
    averaged,
    fit,
    in_checkpoint,
    loader,
    parameters,
    trained,
    weights_by_hand,
)
from helpers.stops import StopsAt

from paceline import PacelineError, Trainer
from paceline.callbacks import EMA, Callback, Checkpoint
from paceline.trainer.checkpoint.export import export_checkpoint


def test_it_is_the_exponential_average_of_the_weights_after_each_step():
    module, weights = Net(), weights_by_hand()
    fit(module, EMA(0.9))
    assert_same(parameters(module), averaged(weights, [0.9] * 17))


def test_every_start_and_warmup():
    module, weights = Net(), weights_by_hand()
    ema = EMA(0.9, "2st", start=5, warmup=True)
    fit(module, ema)
    used = weights[5::2]  # after steps 6, 8, ... 18
    assert ema.averaged == len(used) == 7
    assert_same(parameters(module), averaged(used, [min(0.9, (1 + n) / (10 + n)) for n in range(1, 7)]))


class Losses(Callback):
    def __init__(self):
        self.found = []

    def on_validation_end(self, trainer):
        if trainer.loop.is_fit_validation:
            self.found.append(trainer.metrics["val/loss"])


@pytest.mark.parametrize("validate", [True, False])
def test_validations_use_the_average_where_asked_and_training_never_does(validate, tmp_path):
    weights, losses = weights_by_hand(), Losses()
    trainer = fit(
        Net(), EMA(0.9, validate=validate), losses, Checkpoint(), val=loader(), run_dir=tmp_path, name="n"
    )
    judged = Net()
    for epoch in (1, 2, 3):
        done = weights[: epoch * STEPS]
        values = averaged(done, [0.9] * (len(done) - 1)) if validate else done[-1]
        judged.load_state_dict(values)
        batches = [judged.loss(batch).item() for batch in loader()]
        assert losses.found[epoch - 1] == pytest.approx(sum(batches) / len(batches), rel=1e-5)
    assert_same(trained(trainer.run.latest), weights[-1])
    assert_same(in_checkpoint(trainer.run.latest), averaged(weights, [0.9] * 17))


@pytest.mark.parametrize("validate", [True, False])
def test_what_is_loaded_from_a_checkpoint_are_the_weights_that_validation_judged(validate, tmp_path):
    losses = Losses()
    best = Checkpoint(monitor="val/loss")
    kept = {"val": loader(), "run_dir": tmp_path, "name": "n"}
    trainer = fit(Net(), EMA(0.9, validate=validate), losses, best, **kept)
    judged = Trainer(accelerator="cpu", progress=False, loggers=False, run_dir=None)
    values = judged.validate(Net(), loader(), weights=trainer.run.best)
    assert values["val/loss"] == pytest.approx(min(losses.found), rel=1e-6)
    expected = in_checkpoint(trainer.run.best) if validate else trained(trainer.run.best)
    assert_same(parameters(Net.load_from_checkpoint(trainer.run.best)), expected, 0)
    export_checkpoint(trainer.run.best, tmp_path / "exported", None)
    assert_same(parameters(Net.load_from_checkpoint(tmp_path / "exported")), expected, 0)


def test_a_checkpoint_of_weights_only_has_both(tmp_path):
    trainer = fit(Net(), EMA(0.9), Checkpoint(weights_only=True), run_dir=tmp_path, name="n")
    saved = next((tmp_path / "n" / "1" / "checkpoints").glob("weights-*18"))
    assert_same(in_checkpoint(saved), parameters(trainer.module), 0)
    assert_same(parameters(Net.load_from_checkpoint(saved)), parameters(trainer.module), 0)


@pytest.mark.parametrize("stop", [3, 6, 11])
def test_a_resumed_run_ends_with_the_same_average_to_the_bit(tmp_path, stop):
    whole, second = Net(), Net()
    fit(whole, EMA(0.9, warmup=True))
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), EMA(0.9, warmup=True), StopsAt(stop), Checkpoint(), **kept)
    ema = EMA(0.9, warmup=True)
    fit(second, ema, Checkpoint(), resume="latest", **kept)
    assert ema.averaged == 18
    assert_same(parameters(second), parameters(whole), 0)


def test_a_run_that_had_none_begins_its_average_where_it_resumes(tmp_path, capsys):
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), StopsAt(6), Checkpoint(), **kept)
    module, weights = Net(), weights_by_hand()
    fit(module, EMA(0.9), Checkpoint(), resume="latest", **kept)
    assert "EMA starts from scratch" in capsys.readouterr().out
    assert_same(parameters(module), averaged(weights[6:], [0.9] * 11))


def test_two_have_each_a_name(tmp_path):
    fast, slow = EMA(0.5, name="fast"), EMA(0.9, validate=False, name="slow")
    trainer = fit(Net(), fast, slow, Checkpoint(), run_dir=tmp_path, name="n")
    weights = weights_by_hand()
    assert_same(in_checkpoint(trainer.run.latest, "fast"), averaged(weights, [0.5] * 17))
    assert_same(in_checkpoint(trainer.run.latest, "slow"), averaged(weights, [0.9] * 17))


class Fails(Callback):
    def __init__(self, hook, step):
        self.step = step
        setattr(self, hook, self.fail)

    def fail(self, trainer):
        if trainer.global_step >= self.step:
            raise RuntimeError("planted")


@pytest.mark.parametrize("hook", ["on_validation_start", "on_validation_end", "on_train_epoch_start"])
def test_an_error_leaves_the_trained_weights(hook):
    module = Net()
    with pytest.raises(RuntimeError, match="planted"):
        fit(module, EMA(0.9), Fails(hook, 6), val=loader())
    assert_same(parameters(module), weights_by_hand()[5])


@pytest.mark.parametrize("hook", ["on_validation_start", "on_train_epoch_start"])
def test_an_error_saves_the_trained_weights(tmp_path, hook):
    module = Net()
    with pytest.raises(RuntimeError, match="planted"):
        fit(module, EMA(0.9), Fails(hook, 6), Checkpoint(), val=loader(), run_dir=tmp_path, name="n")
    saved = tmp_path / "n" / "1" / "checkpoints" / "step-00000006"
    assert_same(trained(saved), weights_by_hand()[5])


def test_a_signal_within_a_validation_saves_the_trained_weights(tmp_path):
    class Signals(Callback):
        def on_validation_step_end(self, trainer, output, batch, batch_idx):
            if trainer.global_step == 12 and batch_idx == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        fit(Net(), EMA(0.9), Signals(), Checkpoint(), val=loader(), run_dir=tmp_path, name="n")
    saved = tmp_path / "n" / "1" / "checkpoints" / "step-00000012"
    assert_same(trained(saved), weights_by_hand()[11])


def test_the_average_of_sixteen_bit_weights_is_kept_in_fp32(tmp_path):
    trainer = fit(Net(), EMA(0.999), Checkpoint(), precision="bf16-true", run_dir=tmp_path, name="n")
    assert {t.dtype for t in in_checkpoint(trainer.run.latest).values()} == {torch.float32}
    assert {p.dtype for p in trainer.module.parameters()} == {torch.bfloat16}
    values = in_checkpoint(trainer.run.latest)
    assert any((value.to(torch.bfloat16).float() != value).any() for value in values.values())


def test_tied_weights_are_averaged_once_and_loaded_under_both_names(tmp_path):
    class Tied(Net):
        def __init__(self):
            super().__init__()
            self.again = self.net[0]

    trainer = fit(Tied(), EMA(0.9), Checkpoint(), run_dir=tmp_path, name="n")
    loaded = Tied.load_from_checkpoint(trainer.run.latest)
    assert_same(parameters(loaded), parameters(trainer.module), 0)
    assert_same(parameters(loaded), averaged(weights_by_hand(), [0.9] * 17))


def test_wrong_arguments_are_reported_together():
    with pytest.raises(PacelineError) as error:
        EMA(1.5, every="1ep", warmup="yes")
    assert [name in str(error.value) for name in ("decay", "every", "warmup", "start")] == [1, 1, 1, 0]


@pytest.mark.parametrize("stop", [None, 18])
def test_a_run_that_has_ended_gives_the_average_again_when_it_is_resumed(tmp_path, stop):
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), EMA(0.9), *([StopsAt(stop)] if stop else []), Checkpoint(), **kept)
    module = Net()
    fit(module, EMA(0.9), Checkpoint(), resume="latest", **kept)
    assert_same(parameters(module), averaged(weights_by_hand(), [0.9] * 17))
