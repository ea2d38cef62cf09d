"""What configure_optimizers may return, and when schedules step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, LearningRateMonitor


class Module(TrainModule):
    """Returns what ``configure(module, optimizer)`` makes; validates with scripted values."""

    def __init__(self, configure, values=(1.0,)):
        super().__init__()
        self.net = nn.Linear(2, 1)
        self.configure, self.values = configure, values

    def training_step(self, batch):
        return F.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("score", self.values[min(self.epoch, len(self.values) - 1)])

    def configure_optimizers(self):
        self.seen_total = self.trainer.total_steps
        return self.configure(self, torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.5))


class Rates(Callback):
    """The rate each step was made with, and the rate after each epoch."""

    def __init__(self):
        self.steps, self.epochs = [], []

    def on_step_start(self, trainer):
        self.steps.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_step_boundary(self, trainer):
        if trainer.counters.samples_in_epoch == 0:
            self.epochs.append(trainer.optimizers[0].param_groups[0]["lr"])


def loader(samples=12, batch_size=4):
    x = torch.linspace(0, 0.1, 2 * samples).reshape(samples, 2)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size)


def fit(configure, values=(1.0,), val=False, **settings):
    rates, module = Rates(), Module(configure, values)
    trainer = Trainer(progress=False, loggers=False, checkpoint=False, callbacks=rates, **settings)
    trainer.fit(module, loader(), loader() if val else None)
    return trainer, module, rates


def halves(optimizer):
    return ExponentialLR(optimizer, 0.5)


def entry(optimizer, **more):
    return {"scheduler": halves(optimizer), **more}


SHAPES = {
    "optimizer": lambda m, o: o,
    "list": lambda m, o: [o],
    "tuple": lambda m, o: (o,),
    "dict": lambda m, o: {"optimizer": o},
    "dict with none": lambda m, o: {"optimizer": o, "lr_scheduler": None},
}
SCHEDULED = {
    "(optimizer, scheduler)": lambda m, o: (o, halves(o)),
    "[optimizer, scheduler]": lambda m, o: [o, halves(o)],
    "(optimizer, entry)": lambda m, o: (o, entry(o)),
    "([optimizers], [schedulers])": lambda m, o: ([o], [halves(o)]),
    "([optimizers], [entries])": lambda m, o: ([o], [entry(o)]),
    "dict with scheduler": lambda m, o: {"optimizer": o, "lr_scheduler": halves(o)},
    "dict with entry": lambda m, o: {
        "optimizer": o,
        "lr_scheduler": entry(o, interval="epoch", frequency=1),
    },
    "list of a dict": lambda m, o: [{"optimizer": o, "lr_scheduler": halves(o)}],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_without_a_schedule(shape):
    trainer, _, rates = fit(SHAPES[shape], max_epochs=2)
    assert rates.steps == [1.0] * 6
    assert trainer.lr_schedulers == []


@pytest.mark.parametrize("shape", SCHEDULED)
def test_shapes_with_a_schedule_that_steps_by_epochs(shape):
    _, _, rates = fit(SCHEDULED[shape], max_epochs=2)
    assert rates.steps == [1.0] * 3 + [0.5] * 3
    assert rates.epochs == [0.5, 0.25]


def test_interval_step():
    _, _, rates = fit(lambda m, o: (o, entry(o, interval="step")), max_epochs=2)
    assert rates.steps == [0.5**n for n in range(6)]


def test_interval_step_counts_optimizer_steps_not_micro_batches():
    _, _, rates = fit(lambda m, o: (o, entry(o, interval="step")), max_epochs=2, accumulate=2)
    assert rates.steps == [1.0, 0.5, 0.25, 0.125]


def test_frequency():
    _, _, rates = fit(lambda m, o: (o, entry(o, interval="step", frequency=2)), max_epochs=2)
    assert rates.steps == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    _, _, rates = fit(lambda m, o: (o, entry(o, frequency=3)), max_epochs=7)
    assert rates.epochs == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_two_schedules_of_one_optimizer():
    def configure(module, optimizer):
        by_steps = LambdaLR(optimizer, lambda step: 1.0)
        return [optimizer], [{"scheduler": by_steps, "interval": "step"}, halves(optimizer)]

    trainer, _, _ = fit(configure, max_epochs=2)
    assert [s.interval for s in trainer._fit.optimization.schedules] == ["step", "epoch"]
    assert trainer.lr_schedulers[0].last_epoch == 6
    assert trainer.lr_schedulers[1].last_epoch == 2


@pytest.mark.parametrize("monitor", ["val/score", "score", "val_score"])
def test_plateau_schedule_sees_the_validation_of_its_own_epoch(monitor):
    def configure(module, optimizer):
        plateau = ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=1, threshold=0.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": monitor}}

    values = [1.0, 2.0, 2.0, 2.0, 3.0, 1.0]
    trainer, _, rates = fit(configure, values, val=True, max_epochs=6)
    # Better, better, then two that are not: patience 1 is over after the fourth epoch.
    assert rates.epochs == pytest.approx([1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    assert trainer.lr_schedulers[0].best == 3.0


def test_a_resumed_run_counts_validations_on(tmp_path):
    def configure(module, optimizer):
        plateau = ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
        return optimizer, {"scheduler": plateau, "monitor": "val/score", "frequency": 2}

    def rates(epochs, folder, resume=None):
        seen = Rates()
        settings = {"progress": False, "loggers": False, "run_dir": tmp_path / folder, "name": "n"}
        trainer = Trainer(max_epochs=epochs, callbacks=seen, **settings)
        trainer.fit(Module(configure), loader(), loader(), resume=resume)
        return seen.epochs

    whole = rates(6, "whole")
    assert whole == pytest.approx([1.0, 1.0, 1.0, 0.1, 0.1, 0.01])  # at best every other time
    rates(3, "parts")
    assert rates(6, "parts", resume="latest") == whole[3:]


def test_plateau_without_monitor_is_refused():
    with pytest.raises(PacelineError, match="ReduceLROnPlateau watches a value"):
        fit(lambda m, o: (o, ReduceLROnPlateau(o)), val=True)


def test_plateau_on_a_value_that_is_not_logged_is_reported_in_the_sanity_pass():
    def configure(module, optimizer):
        plateau = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val/scroe"}
        return {"optimizer": optimizer, "lr_scheduler": plateau}

    with pytest.raises(PacelineError, match="which validation does not log") as raised:
        fit(configure, val=True)
    assert "did you mean: val/score?" in str(raised.value)


def test_plateau_without_validation_is_reported_before_training():
    def configure(module, optimizer):
        return optimizer, {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val/score"}

    with pytest.raises(PacelineError, match="this run has no validation"):
        fit(configure)


def test_plateau_on_a_training_value():
    def configure(module, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 1e-4
        plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        return optimizer, {"scheduler": plateau, "monitor": "train/loss_epoch"}

    _, _, rates = fit(configure, max_epochs=3)
    assert rates.epochs == pytest.approx([1e-4, 5e-5, 2.5e-5])  # the loss halves in no epoch


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        ({"max_epochs": 4}, 12),
        ({"max_steps": 7}, 7),
        ({"max_epochs": 2, "max_steps": 100}, 6),
        ({"max_epochs": 4, "accumulate": 2}, 8),
        ({"max_epochs": 4, "limit_train_batches": 2}, 8),
        ({}, 3),
        ({"max_time": "0.01s"}, None),
    ],
)
def test_total_steps_is_known_in_configure_optimizers(limits, total):
    _, module, _ = fit(lambda m, o: o, **limits)
    assert module.seen_total == total


def test_a_schedule_over_total_steps_ends_where_the_run_does():
    def configure(module, optimizer):
        total = module.trainer.total_steps
        cycle = OneCycleLR(optimizer, max_lr=1.0, total_steps=total, cycle_momentum=False)
        return optimizer, {"scheduler": cycle, "interval": "step"}

    _, _, rates = fit(configure, max_epochs=3)
    assert len(rates.steps) == 9
    assert max(rates.steps) > 0.9
    assert rates.steps[-1] == pytest.approx(1 / 25 / 1e4)  # the lowest point of the cycle


class Used(Callback):
    """What each update is made with."""

    def __init__(self):
        self.settings = {}

    def on_before_optimizer_step(self, trainer, optimizer):
        group = optimizer.param_groups[0]
        found = {f"{name}/SGD": float(group[name]) for name in ("lr", "momentum")}
        self.settings[trainer.global_step + 1] = found


class Schedules(Module):
    """A rate and a momentum that change by steps or epochs."""

    def __init__(self, interval, as_tensor):
        super().__init__(None)
        self.interval, self.as_tensor = interval, as_tensor

    def configure_optimizers(self):
        rate = torch.tensor(1.0) if self.as_tensor else 1.0
        optimizer = torch.optim.SGD(self.parameters(), lr=rate, momentum=0.5)
        cycle = OneCycleLR(optimizer, max_lr=0.5, total_steps=20, base_momentum=0.2)
        return optimizer, {"scheduler": cycle, "interval": self.interval}


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_row_has_the_settings_that_its_step_was_made_with(tmp_path, interval, as_tensor):
    used, monitor = Used(), LearningRateMonitor(1, momentum=True)
    settings = {"run_dir": tmp_path, "name": "n", "progress": False, "loggers": ["-tensorboard", "-curves"]}
    settings |= {"callbacks": [used, monitor], "log_every": "1st", "accelerator": "cpu"}
    for epochs in (2, 4):
        run = Trainer(max_epochs=epochs, **settings).fit(
            Schedules(interval, as_tensor), loader(), resume="auto"
        )
    rows = [row for row in run.rows if "lr/SGD" in row]
    assert {row["step"] for row in rows} == set(used.settings) == set(range(1, 13))
    for row in rows:
        wanted = used.settings[row["step"]]
        found = {name: row.get(name, wanted[name]) for name in wanted}
        assert found == pytest.approx(wanted, rel=1e-6)
    assert len({found["lr/SGD"] for found in used.settings.values()}) == {"step": 12, "epoch": 4}[interval]


def test_rates_are_named_by_optimizer_and_group():
    def configure(module, optimizer):
        weight, bias = module.net.weight, module.net.bias
        return torch.optim.AdamW([{"params": [weight]}, {"params": [bias], "lr": 0.5}], lr=0.25)

    trainer, _, _ = fit(configure)
    rates = {k: v for k, v in trainer.metrics.items() if k.startswith("lr/")}
    assert rates == {"lr/AdamW/group-0": 0.25, "lr/AdamW/group-1": 0.5}


@pytest.mark.parametrize(
    ("configure", "printed"),
    [
        (lambda m, o: None, "got: None"),
        (lambda m, o: [], "nothing to train with"),
        (lambda m, o: "adam", "nothing to train with"),
        (lambda m, o: {"optimiser": o}, "no 'optimizer'"),
        (lambda m, o: {"optimizer": o, "scheduler": halves(o)}, "unknown keys"),
        (lambda m, o: {"optimizer": m.net}, "Linear is no torch.optim.Optimizer"),
        (lambda m, o: (o, 3), "no scheduler"),
        (lambda m, o: (o, entry(o, freqency=2)), "did you mean: frequency"),
        (lambda m, o: (o, entry(o, interval="batch")), "'epoch', 'step'"),
        (lambda m, o: (o, entry(o, frequency=0)), "an integer of at least 1"),
        (lambda m, o: (o, {"interval": "step"}), "scheduler"),
        (lambda m, o: (o, halves(torch.optim.SGD(m.parameters(), lr=1.0))), "was not returned"),
    ],
)
def test_other_shapes_are_refused_by_name(configure, printed):
    with pytest.raises(PacelineError, match="configure_optimizers") as error:
        fit(configure)
    assert printed in str(error.value)
    assert len(str(error.value).splitlines()) <= 12


def test_a_parameter_in_no_optimizer_is_named():
    with pytest.raises(PacelineError, match=r"1 of 2 trainable parameters(.|\n)*net\.bias"):
        fit(lambda m, o: torch.optim.SGD([m.net.weight], lr=1.0))


def test_a_frozen_parameter_needs_no_optimizer():
    def configure(module, optimizer):
        module.net.bias.requires_grad_(False)
        return torch.optim.SGD([module.net.weight], lr=0.1)

    _, module, _ = fit(configure)
    assert module.net.bias.grad is None


def test_several_optimizers_need_manual_optimization():
    def configure(module, optimizer):
        return [torch.optim.SGD([p], lr=1.0) for p in module.parameters()]

    with pytest.raises(PacelineError, match="several optimizers need manual optimization"):
        fit(configure)


def test_an_optimizer_that_needs_a_closure_is_refused():
    with pytest.raises(PacelineError, match="LBFGS evaluates the loss itself"):
        fit(lambda m, o: torch.optim.LBFGS(m.parameters()))


class Recorder:
    """A scheduler that keeps what it is stepped with."""

    def __init__(self):
        self.values = []

    def step(self, value):
        self.values.append(value)

    def state_dict(self):
        return {"values": list(self.values)}

    def load_state_dict(self, state):
        self.values = state["values"]


class Scored(Module):
    """Each validation has another score: how many steps were made."""

    def validation_step(self, batch):
        self.log("score", float(self.global_step))


def fit_scored(folder, interval, frequency=1, resume=None, **settings):
    recorder = Recorder()

    def configure(module, optimizer):
        schedule = {"scheduler": recorder, "interval": interval, "frequency": frequency}
        return optimizer, schedule | {"monitor": "val/score"}

    usual = {"progress": False, "loggers": False, "run_dir": folder, "name": "n", "accelerator": "cpu"}
    trainer = Trainer(**(usual | settings))
    trainer.fit(Scored(configure), loader(), loader(), resume=resume)  # 3 steps an epoch
    return recorder.values


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("1ep", [3.0, 6.0, 9.0]),
        (2, [2.0, 4.0, 6.0, 8.0]),
        (1, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
        (5, [5.0]),
        ("2ep", [6.0]),
    ],
)
def test_a_schedule_that_watches_validation_steps_once_for_each_new_value(
    interval, every, expected, tmp_path
):
    assert fit_scored(tmp_path, interval, validate_every=every, max_epochs=3) == expected


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_its_frequency_counts_values_and_a_resume_continues_the_count(interval, tmp_path):
    settings = {"validate_every": 1, "frequency": 2}
    assert fit_scored(tmp_path / "whole", interval, max_steps=9, **settings) == [2.0, 4.0, 6.0, 8.0]
    assert fit_scored(tmp_path / "cut", interval, max_steps=5, **settings) == [2.0, 4.0]
    resumed = fit_scored(tmp_path / "cut", interval, max_steps=9, resume="latest", **settings)
    assert resumed == [2.0, 4.0, 6.0, 8.0]
