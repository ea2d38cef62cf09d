"""Schedules by name and duration: their factors, against torch's own and hand-written ones, and in runs."""

import math
from dataclasses import replace

import pytest
import torch
from helpers.averages import Net as Base
from helpers.averages import assert_same, fit, loader, parameters
from helpers.stops import StopsAt
from torch.optim.lr_scheduler import CosineAnnealingLR
from typer.testing import CliRunner

from paceline import PacelineError, Trainer
from paceline.__main__ import app
from paceline.callbacks import Callback, Checkpoint
from paceline.optimizers.schedule_plot import plot
from paceline.schedules import (
    WSD,
    Constant,
    Cosine,
    CosineWithRestarts,
    InverseSqrt,
    Linear,
    Polynomial,
    RunLength,
    make_schedule,
)


def factors(schedule, steps, **length):
    return [schedule.factor(step, RunLength(steps, **length)) for step in range(steps)]


def test_the_cosine_is_torchs_own():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs, found = CosineAnnealingLR(optimizer, 20, eta_min=0.1), []
    for _ in range(20):
        found.append(torchs.get_last_lr()[0])
        optimizer.step()
        torchs.step()
    assert factors(Cosine(end=0.1), 20) == pytest.approx(found)


STEPS, WARMUP = 40, 7


@pytest.mark.parametrize("warmup", [0, WARMUP])
@pytest.mark.parametrize(
    ("name", "arguments", "ours"),
    [
        ("linear", {}, Linear()),
        ("cosine", {}, Cosine()),
        ("cosine_with_restarts", {"num_cycles": 3}, CosineWithRestarts(cycles=3)),
        ("polynomial", {"power": 2.0, "lr_end": 0.05}, Polynomial(power=2.0, end=0.1)),
        ("constant", {}, Constant()),
        ("constant_with_warmup", {}, Constant()),
        ("inverse_sqrt", {}, InverseSqrt()),
        ("inverse_sqrt", {"timescale": 5}, InverseSqrt(timescale=5)),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1}, Cosine(end=0.1)),
        (
            "warmup_stable_decay",
            {"num_decay_steps": 9, "decay_type": "cosine"},
            WSD(decay=9, shape="cosine"),
        ),
        ("warmup_stable_decay", {"num_decay_steps": 9, "decay_type": "linear"}, WSD(decay=9)),
        ("warmup_stable_decay", {"num_decay_steps": 9, "decay_type": "1-sqrt"}, WSD(decay=9, shape="sqrt")),
    ],
)
def test_rates_are_those_of_transformers_schedules(name, arguments, ours, warmup):
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = transformers.get_scheduler(name, optimizer, warmup, STEPS, arguments)
    if name == "constant":
        warmup = 0
    schedule = replace(ours, warmup=warmup, warmup_start=0.0)
    for step in range(STEPS):
        assert 0.5 * schedule.factor(step, RunLength(STEPS)) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(warmup=3), [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        (Constant(warmup=4, warmup_start=0.2), [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1]),
        (Linear(), [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        (Linear(warmup="25%", end=0.5), [1 / 3, 2 / 3, *(1 - 0.5 * k / 6 for k in range(6))]),
        (WSD(decay="50%"), [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
        (WSD(warmup=2, decay=2, end=0.2), [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 0.6]),
        (WSD(decay=4, shape="sqrt"), [1, 1, 1, 1, *(1 - math.sqrt(k / 4) for k in range(4))]),
        (
            WSD(decay=4, shape="cosine"),
            [1, 1, 1, 1, *((1 + math.cos(math.pi * k / 4)) / 2 for k in range(4))],
        ),
        (WSD(warmup=6, decay="100%"), [*((k + 1) / 7 for k in range(6)), 1, 0.5]),
    ],
)
def test_factors_by_hand(schedule, expected):
    assert factors(schedule, 8) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("warmup", "steps"), [("1ep", 4), ("0.5ep", 2), ("30%", 4), ("2st", 2), (3, 3), (0, 0)]
)
def test_warmups_are_durations_and_parts_of_the_run(warmup, steps):
    found = factors(Constant(warmup=warmup), 12, epoch=4)
    assert [factor < 1 for factor in found] == [True] * steps + [False] * (12 - steps)


class Net(Base):
    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def configure_optimizers(self):
        return {"optimizer": torch.optim.SGD(self.parameters(), lr=0.5), "lr_scheduler": self.schedule}


class Rates(Callback):
    def __init__(self):
        self.found = []

    def on_step_start(self, trainer, batches):
        self.found.append(trainer.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize(
    "schedule",
    ["wsd", WSD(), {"scheduler": "wsd", "name": "mine"}, {"scheduler": WSD(), "interval": "step"}],
)
def test_a_run_steps_it_after_each_optimizer_step(schedule):
    rates = Rates()
    fit(Net(schedule), rates)  # 18 steps
    assert rates.found == pytest.approx([0.5 * factor for factor in factors(WSD(), 18)])


def test_several_optimizers_have_each_its_own():
    class Two(Net):
        automatic_optimization = False

        def training_step(self, batch):
            for optimizer, rate in zip(self.optimizers(), self.lr_schedulers(), strict=True):
                self.manual_backward(self.loss(batch))
                optimizer.step()
                optimizer.zero_grad()
                rate.step()

        def configure_optimizers(self):
            first, *others = self.parameters()
            pair = [torch.optim.SGD([first], lr=1.0), torch.optim.SGD(others, lr=2.0)]
            return pair, [Linear(), Constant(warmup=1)]

    class Both(Rates):
        def on_step_start(self, trainer, batches):
            self.found.append([o.param_groups[0]["lr"] for o in trainer.optimizers])

    rates = Both()
    fit(Two(None), rates, max_epochs=None, max_steps=4)
    assert rates.found == [[1.0, 1.0], [0.75, 2.0], [0.5, 2.0], [0.25, 2.0]]


@pytest.mark.parametrize("stop", [2, 7])
def test_a_resumed_run_has_the_same_rates(tmp_path, stop):
    whole, first, second = Rates(), Rates(), Rates()
    fit(Net("cosine"), whole)
    fit(Net("cosine"), first, StopsAt(stop), Checkpoint(), run_dir=tmp_path, name="n")
    fit(Net("cosine"), second, Checkpoint(), resume="latest", run_dir=tmp_path, name="n")
    assert first.found + second.found == whole.found


def test_a_longer_run_that_resumes_has_the_rates_of_its_new_length(tmp_path):
    rates = Rates()
    fit(Net("linear"), Checkpoint(), run_dir=tmp_path, name="n")
    fit(Net("linear"), rates, Checkpoint(), resume="latest", run_dir=tmp_path, name="n", max_epochs=6)
    assert rates.found == pytest.approx([0.5 * factor for factor in factors(Linear(), 36)[18:]])


# -- a decay from any checkpoint -----------------------------------------------------------------


def stable(tmp_path, **settings):
    fit(Net(WSD(decay=1)), Checkpoint("4st", keep=None), run_dir=tmp_path, name="n", **settings)
    return tmp_path / "n" / "1" / "checkpoints"


def resumed(module, path, rates, tmp_path, decay, name="branch", **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False} | settings
    callbacks = [rates, *usual.pop("callbacks", [])]
    trainer = Trainer(callbacks=callbacks, run_dir=tmp_path, name=name, **usual)
    trainer.fit(module, loader(), resume=path, decay=decay)
    return trainer


@pytest.mark.parametrize(("decay", "steps"), [("50%", 6), (3, 3), ("1ep", 6)])
def test_it_is_of_the_asked_length_and_ends_the_run(tmp_path, decay, steps, capsys):
    rates = Rates()
    trainer = resumed(Net(WSD()), stable(tmp_path) / "step-00000012", rates, tmp_path, decay)
    assert trainer.global_step == trainer.total_steps == 12 + steps
    assert rates.found == pytest.approx([0.5 * (1 - k / steps) for k in range(steps)])
    assert f"decays over {steps} steps, from step 12 to {12 + steps}" in capsys.readouterr().out


def test_a_branch_that_is_cut_continues_its_decay(tmp_path):
    source = stable(tmp_path) / "step-00000012"
    whole, cut, rest = Net(WSD()), Rates(), Rates()
    resumed(whole, source, Rates(), tmp_path, 6, name="whole")
    resumed(Net(WSD()), source, cut, tmp_path, 6, callbacks=[StopsAt(14), Checkpoint()])
    module = Net(WSD())
    trainer = resumed(module, "latest", rest, tmp_path, None, callbacks=[Checkpoint()])
    assert trainer.global_step == 18
    assert cut.found + rest.found == pytest.approx([0.5 * (1 - k / 6) for k in range(6)])
    assert_same(parameters(module), parameters(whole), 0)


def test_without_a_checkpoint_or_a_schedule_that_decays_it_is_refused(tmp_path):
    with pytest.raises(PacelineError, match="from a checkpoint on, and there is none"):
        resumed(Net(WSD()), None, Rates(), tmp_path, "10%")
    source = stable(tmp_path) / "step-00000012"
    with pytest.raises(PacelineError, match="is for a WSD schedule"):
        resumed(Net("cosine"), source, Rates(), tmp_path, "10%")
    with pytest.raises(PacelineError, match="has no step"):
        resumed(Net(WSD()), source, Rates(), tmp_path, "0%")
    with pytest.raises(PacelineError, match="decay is not a duration in steps"):
        resumed(Net(WSD()), source, Rates(), tmp_path, "soon")


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_schedule("cosin"), "did you mean: cosine"),
        (lambda: make_schedule("wsd", warm_up=3), "did you mean: warmup"),
        (lambda: Cosine(end=2), "end: got 2"),
        (lambda: WSD(shape="square"), "shape: got 'square'"),
        (lambda: Linear(warmup="110%"), "warmup is not a duration in steps"),
        (lambda: Linear(warmup="1min"), "cannot be counted in steps before the run"),
        (lambda: Cosine(warmup=0.05), 'did you mean: "5%"'),
        (lambda: Linear(warmup=-1), "warmup is not a duration in steps"),
        (lambda: Cosine().factor(0, RunLength(None)), "needs the length of the run, which is unknown"),
        (lambda: Constant(warmup="1ep").factor(0, RunLength(9)), "how many an epoch has is unknown"),
        (lambda: fit(Net("cosin")), "there is no schedule 'cosin'"),
        (lambda: fit(Net({"scheduler": "cosine", "interval": "epoch"})), "leave interval out"),
        (lambda: fit(Net("cosine"), max_epochs=None, max_time="1min"), "Cosine() needs the length"),
    ],
)
def test_mistakes_name_what_is_meant(make, message):
    with pytest.raises(PacelineError) as error:
        make()
    assert message in str(error.value)


# -- pictures ------------------------------------------------------------------------------------


def test_the_picture_and_the_command(tmp_path):
    plot(WSD(warmup="5%"), tmp_path / "a" / "lr.png", RunLength(100), 3e-4)
    assert (tmp_path / "a" / "lr.png").read_bytes().startswith(b"\x89PNG")
    picture = tmp_path / "lr.png"
    arguments = [
        "plot-lr",
        "wsd",
        "warmup=10",
        "decay=20%",
        "--steps",
        "100",
        "--lr",
        "0.5",
        "--out",
        str(picture),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert picture.exists()
    rates = {line.split()[1]: float(line.split()[2]) for line in done.output.splitlines()[:-1]}
    assert rates["1"] == pytest.approx(0.5 / 11, rel=1e-4)
    assert rates["50"] == 0.5
    assert rates["100"] == pytest.approx(0.5 * 1 / 20)
