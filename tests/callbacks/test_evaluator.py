"""Evaluator: values of further data, when they are measured, and what they leave alone."""

import copy
import os
import pickle
import signal

import pytest
import torch
from helpers.averages import Net, X, fit, loader, weights_by_hand
from helpers.messages import refusal, says
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Run
from paceline.callbacks import (
    EMA,
    Callback,
    Checkpoint,
    DeviceMonitor,
    EarlyStopping,
    Evaluator,
)

OTHER = DataLoader(TensorDataset(X[:21]), 4)


def expected(weights, data=X[:21]):
    module = Net()
    module.load_state_dict(weights)
    return sum(module.loss((x,)).item() * len(x) for x in data.split(4)) / len(data)


def metrics(tmp_path):
    return Run(tmp_path / "n" / "1").metrics


def test_each_has_its_own_times_and_the_weights_of_its_step(tmp_path, capsys):
    each = [Evaluator(OTHER, "often", "4st"), Evaluator(OTHER, "rarely", "2ep")]
    fit(Net(), *each, val=loader(), run_dir=tmp_path, name="n", loggers=["-tensorboard", "-curves"])
    weights, found = weights_by_hand(), metrics(tmp_path)
    assert found["val/often/loss"].steps == [4, 8, 12, 16]
    assert found["val/rarely/loss"].steps == [12]
    assert found["val/loss"].steps == [6, 12, 18]
    for step, value in zip(found["val/often/loss"].steps, found["val/often/loss"].values, strict=True):
        assert value == pytest.approx(expected(weights[step - 1]), rel=1e-5)
    assert f"step 12: val/rarely/loss {found['val/rarely/loss'].values[0]:.4g}" in capsys.readouterr().out


def test_the_line_of_the_run_s_own_validation_has_no_values_of_others(capsys):
    fit(Net(), Evaluator(OTHER, "other"), val=loader(), progress=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert len(lines) >= 3
    assert not [line for line in lines if "val/other" in line]


def test_it_leaves_training_alone():
    plain, evaluated = Net(), Net()
    fit(plain)
    fit(evaluated, Evaluator(OTHER, "other", 1))
    for mine, other in zip(plain.parameters(), evaluated.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_other_callbacks_judge_the_run_s_own_validation_and_the_module_s_hooks_are_called():
    class Counted(Net):
        passes = 0

        def on_validation_end(self):
            self.passes += 1

    class Seen(Callback):
        passes = 0

        def on_validation_end(self, trainer):
            self.passes += 1

    module, seen, stops = Counted(), Seen(), EarlyStopping("val/loss", patience=9)
    fit(module, Evaluator(OTHER, "other", "3st"), seen, stops, val=loader())
    assert (module.passes, seen.passes) == (3 + 6, 3)


def test_averaged_weights_are_evaluated_where_validation_uses_them(tmp_path):
    fit(
        Net(),
        EMA(0.0),
        Evaluator(OTHER, "other"),
        run_dir=tmp_path,
        name="n",
        loggers=["-tensorboard", "-curves"],
    )
    still, found = weights_by_hand(), metrics(tmp_path)["val/other/loss"]
    assert found.values == pytest.approx([expected(still[n - 1]) for n in found.steps], rel=1e-5)

    class Frozen(EMA):
        def combine(self, values, weights):
            """The average stays at the first weights."""

    fit(
        Net(),
        Frozen(),
        Evaluator(OTHER, "other"),
        run_dir=tmp_path / "2",
        name="n",
        loggers=["-tensorboard", "-curves"],
    )
    found = metrics(tmp_path / "2")["val/other/loss"].values
    assert found == pytest.approx([expected(still[0])] * 3, rel=1e-5)


def test_a_pass_that_a_signal_interrupts_is_repeated_on_resume(tmp_path):
    class Signals(Net):
        def validation_step(self, batch, batch_idx):
            if self.global_step == 12 and batch_idx == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().validation_step(batch)

    kept = {"run_dir": tmp_path, "name": "n", "loggers": ["-tensorboard", "-curves"]}
    with pytest.raises(SystemExit):
        fit(Signals(), Evaluator(OTHER, "other"), Checkpoint(), **kept)
    assert metrics(tmp_path)["val/other/loss"].steps == [6]
    fit(Net(), Evaluator(OTHER, "other"), Checkpoint(), resume="latest", **kept)
    found = metrics(tmp_path)["val/other/loss"]
    assert found.steps == [6, 12, 18]
    assert found.values[1] == pytest.approx(expected(weights_by_hand()[11]), rel=1e-5)


def test_callbacks_can_be_copied_after_a_fit():
    callbacks = [Evaluator(OTHER, "other"), DeviceMonitor(1)]
    fit(Net(), *callbacks, max_epochs=1)
    assert copy.deepcopy(callbacks)[0].name == "other"
    assert pickle.loads(pickle.dumps(callbacks))[1].every == 1


def test_a_module_without_validation_step_is_refused():
    class Without(Net):
        from paceline import TrainModule

        validation_step = TrainModule.validation_step

    with pytest.raises(PacelineError, match="has no validation_step"):
        fit(Without(), Evaluator(OTHER, "other"))


def test_wrong_arguments_are_reported_together():
    says(refusal(Evaluator, OTHER, "a/b", every=0), "name", "every")
