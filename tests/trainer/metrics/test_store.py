"""Logged values: exact means, windows and epochs, reductions, names, torchmetrics objects."""

import math

import numpy as np
import pytest
import torch
from helpers.loggers import NO_DEFAULTS, Rows
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from torchmetrics.regression import MeanAbsoluteError

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.trainer.metrics import store as metrics


class Module(TrainModule):
    """Calls a function of the test in each step; its loss is the mean of the batch."""

    def __init__(self, train=None, validate=None):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.train_log, self.validate_log = train, validate

    def training_step(self, batch, batch_idx):
        (x,) = batch
        if self.train_log:
            self.train_log(self, x, batch_idx)
        return (self.scale * x).mean()

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        if self.validate_log:
            return self.validate_log(self, x, batch_idx)
        return x.mean()

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def numbers(count, batch_size=4):
    values = torch.arange(1.0, count + 1, dtype=torch.float64) ** 2
    return DataLoader(TensorDataset(values), batch_size=batch_size)


def fit(module, count=14, val=None, **settings):
    rows = Rows()
    settings = {
        "progress": False,
        "checkpoint": False,
        "loggers": [rows, *NO_DEFAULTS],
        "max_epochs": 1,
    } | settings
    trainer = Trainer(**settings)
    trainer.fit(module, numbers(count), val)
    return trainer, rows


VALUES = [float(n * n) for n in range(1, 15)]
MEAN = sum(VALUES) / len(VALUES)


def test_means_over_ragged_batches_are_means_over_samples():
    module = Module(lambda m, x, i: m.log("mean", x.mean()), lambda m, x, i: m.log("mean", x.mean()))
    trainer, _ = fit(module, val=numbers(14))  # batches of 4, 4, 4 and 2
    assert trainer.metrics["val/mean"] == pytest.approx(MEAN, rel=1e-14)
    assert trainer.metrics["train/mean_epoch"] == pytest.approx(MEAN, rel=1e-14)
    assert trainer.metrics["train/loss_epoch"] == pytest.approx(MEAN, rel=1e-14)


def test_the_batch_size_of_a_validation_changes_no_value():
    found = [fit(Module(), val=numbers(14, size))[0].metrics["val/loss"] for size in (1, 3, 4, 14)]
    assert found == pytest.approx([MEAN] * 4, rel=1e-14)


def test_a_weight_of_ones_own():
    def log(module, x, batch_idx):
        module.log("number", float(batch_idx), weight=10**batch_idx)
        module.log("tensor", float(batch_idx), weight=torch.tensor(10.0**batch_idx))

    trainer, _ = fit(Module(log), count=12)
    expected = (0 * 1 + 1 * 10 + 2 * 100) / 111
    assert trainer.metrics["train/number_epoch"] == pytest.approx(expected, rel=1e-12)
    assert trainer.metrics["train/tensor_epoch"] == pytest.approx(expected, rel=1e-12)


def test_the_window_is_the_mean_since_the_last_log_point_and_the_epoch_the_mean_of_all():
    _, rows = fit(Module(), log_every=2)
    a, b, c, d = (sum(VALUES[i : i + 4]) / len(VALUES[i : i + 4]) for i in (0, 4, 8, 12))
    # Step 1 is always a log point; the fourth step is one, and the epoch's end.
    assert [step for step, _ in rows.series("train/loss")] == [1, 2, 4]
    assert [v for _, v in rows.series("train/loss")][:2] == pytest.approx([a, b], rel=1e-14)
    window = (c * 4 + d * 2) / 6
    assert rows.series("train/loss")[2][1] == pytest.approx(window, rel=1e-14)
    ((step, epoch),) = rows.series("train/loss_epoch")
    assert (step, epoch) == (4, pytest.approx(MEAN, rel=1e-14))


def test_the_rest_of_a_window_is_written_at_the_epochs_end():
    _, rows = fit(Module(), log_every=3, max_epochs=2)
    assert [step for step, _ in rows.series("train/loss")] == [1, 3, 4, 6, 8]
    assert [step for step, _ in rows.series("train/loss_epoch")] == [4, 8]
    assert rows.series("train/loss_epoch")[0][1] == rows.series("train/loss_epoch")[1][1]


def test_rows_say_where_the_run_is():
    _, rows = fit(Module(), log_every=2)
    assert [(r["step"], r["samples"]) for r in rows.rows if "train/loss" in r] == [(1, 4), (2, 8), (4, 14)]
    assert all(row["time"] >= 0 and row["epoch"] == 0 for row in rows.rows)
    assert rows.rows[0]["lr/SGD"] == 0.0
    assert rows.rows[0]["perf/samples_per_second"] > 0


def test_sum_min_and_max():
    def log(module, x, batch_idx):
        for reduce in ("sum", "min", "max"):
            module.log(reduce, x.sum() if reduce == "sum" else getattr(x, reduce)(), reduce=reduce)

    trainer, rows = fit(Module(log, log), val=numbers(14), log_every=2)
    for phase, end in (("train", "_epoch"), ("val", "")):
        assert trainer.metrics[f"{phase}/sum{end}"] == sum(VALUES)
        assert trainer.metrics[f"{phase}/min{end}"] == 1.0
        assert trainer.metrics[f"{phase}/max{end}"] == 196.0
    assert rows.series("train/sum") == [(1, sum(VALUES[:4])), (2, sum(VALUES[4:8])), (4, sum(VALUES[8:]))]
    assert rows.series("train/min") == [(1, 1.0), (2, 25.0), (4, 81.0)]


def test_twice_in_a_step_is_two_contributions():
    def log(module, x, batch_idx):
        module.log("count", 1.0, reduce="sum")
        module.log("count", 1.0, reduce="sum")
        module.log("half", 0.0)
        module.log("half", 1.0)

    trainer, _ = fit(Module(log))
    assert trainer.metrics["train/count_epoch"] == 8.0
    assert trainer.metrics["train/half_epoch"] == 0.5


def test_micro_batches_contribute_by_their_samples():
    module = Module(lambda m, x, i: m.log("mean", x.mean()))
    trainer, rows = fit(module, accumulate=2)
    assert trainer.metrics["train/mean_epoch"] == pytest.approx(MEAN, rel=1e-14)
    assert rows.series("train/mean")[0][1] == pytest.approx(sum(VALUES[:8]) / 8, rel=1e-14)


def test_a_value_logged_in_some_steps_only_is_the_mean_of_those():
    module = Module(lambda m, x, i: i == 2 and m.log("rare", 5.0))
    trainer, rows = fit(module, log_every=1)
    assert rows.series("train/rare") == [(3, 5.0)]
    assert trainer.metrics["train/rare_epoch"] == 5.0


def test_log_dict_with_options():
    module = Module(None, lambda m, x, i: m.log_dict({"a": x.mean(), "b": 1}, weight=1))
    trainer, _ = fit(module, val=numbers(6))
    assert trainer.metrics["val/a"] == pytest.approx((30 / 4 + 61 / 2) / 2)
    assert trainer.metrics["val/b"] == 1.0


def test_prog_bar_names_are_shown():
    module = Module(
        lambda m, x, i: m.log("seen", 1.0, prog_bar=True), lambda m, x, i: m.log("acc", 1.0, prog_bar=True)
    )
    trainer, _ = fit(module, val=numbers(4))
    assert {"train/seen", "val/acc"} <= set(trainer.loop.progress_bar_names)
    assert "train/loss" not in trainer.loop.progress_bar_names


@pytest.mark.parametrize("name", ["loss", "val_loss", "val/loss"])
def test_in_validation_three_names_are_one_value(name):
    trainer, _ = fit(Module(None, lambda m, x, i: m.log(name, x.mean())), val=numbers(14))
    values = {k: v for k, v in trainer.metrics.items() if k.startswith("val")}
    assert values == {"val/loss": pytest.approx(MEAN, rel=1e-14)}


def test_a_name_gets_its_phase_unless_it_has_one():
    module = Module(lambda m, x, i: m.log_dict({"a": 1.0, "train_b": 2.0, "extra/c": 3.0}))
    trainer, _ = fit(module)
    assert {"train/a": 1.0, "train/b": 2.0, "extra/c": 3.0}.items() <= trainer.metrics.items()
    module.validate_log = lambda m, x, i: m.log("test_d", 4.0)
    assert trainer.test(module, numbers(4)) == {"test/d": 4.0}


def test_numbers_of_every_kind():
    given = {"int": 2, "float": 2.0, "bool": True, "np": np.float32(2)}
    given |= {"tensor": torch.tensor([2.0]), "whole": torch.tensor(2)}
    trainer, _ = fit(Module(None, lambda m, x, i: m.log_dict(given)), val=numbers(4))
    assert all(trainer.metrics[f"val/{name}"] == float(value) for name, value in given.items())
    assert all(type(value) is float for value in trainer.metrics.values())


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (torch.ones(3), r"log\('x'\): only scalars"),
        ("0.5", r"log\('x'\): only scalars"),
        (None, r"log\('x'\): only scalars"),
        ({"a": 1.0}, "log_dict"),
    ],
)
def test_what_is_no_number_is_refused(value, printed):
    with pytest.raises(PacelineError, match=printed):
        fit(Module(lambda m, x, i: m.log("x", value)))


def test_unknown_arguments_and_reductions_are_answered():
    with pytest.raises(PacelineError, match="'sync_dist'") as raised:
        fit(Module(lambda m, x, i: m.log("x", 1.0, sync_dist=True)))
    assert "always reduced over all ranks" in str(raised.value)
    with pytest.raises(PacelineError, match="'mena'"):
        fit(Module(lambda m, x, i: m.log("x", 1.0, reduce="mena")))


def test_one_name_with_two_reductions_is_refused():
    def log(module, x, batch_idx):
        module.log("x", 1.0)
        module.log("x", 1.0, reduce="sum")

    with pytest.raises(PacelineError, match="two reductions"):
        fit(Module(log))


def test_a_nan_is_named_once(capsys):
    trainer, rows = fit(Module(lambda m, x, i: m.log("odd", math.nan)), log_every=1)
    assert capsys.readouterr().out.count("log('odd'): the value is nan") == 1
    assert math.isnan(trainer.metrics["train/odd"])
    assert len(rows.series("train/odd")) >= 4


def test_a_nan_among_others_makes_min_and_max_nan():
    def log(module, x, batch_idx):
        for reduce in ("min", "max"):
            module.log(reduce, math.nan if batch_idx == 1 else float(batch_idx), reduce=reduce)

    trainer, _ = fit(Module(log))
    assert math.isnan(trainer.metrics["train/min_epoch"])
    assert math.isnan(trainer.metrics["train/max_epoch"])


def test_callbacks_log_too():
    class Logs(Callback):
        def on_step_end(self, trainer):
            trainer.log("from/callback", float(trainer.global_step), reduce="max")

        def on_validation_end(self, trainer):
            trainer.log("late", 3.0)

        def on_train_epoch_end(self, trainer):
            trainer.log("at_end", 4.0)

    trainer, rows = fit(Module(), val=numbers(4), callbacks=Logs())
    assert trainer.metrics["from/callback_epoch"] == 4.0
    assert rows.series("val/late") == [(4, 3.0)]
    assert rows.series("train/at_end") == [(4, 4.0)]


# -- torchmetrics --------------------------------------------------------------------------------


class Classifier(TrainModule):
    """Predicts what the data says it does; its values are counted by torchmetrics."""

    def __init__(self, metric, many=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.metric, self.many = metric, many
        self.train_metric = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch):
        self.train_metric.update(*batch)
        self.log("acc", self.train_metric)
        return self.weight * 1.0

    def validation_step(self, batch):
        self.metric.update(*batch)
        self.log_dict(self.metric) if self.many else self.log("accuracy", self.metric, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def labels(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 3, (count,), generator=generator) for _ in range(2))


def fit_classifier(module, **settings):
    rows = Rows()
    trainer = Trainer(progress=False, checkpoint=False, loggers=[rows, *NO_DEFAULTS], **settings)
    train, val = labels(14, 1), labels(23, 2)
    loaders = (DataLoader(TensorDataset(*train), 4), DataLoader(TensorDataset(*val), 5))
    trainer.fit(module, *loaders)
    return trainer, rows, train, val


def test_a_torchmetrics_object_is_computed_over_the_whole_and_reset():
    trainer, rows, train, val = fit_classifier(
        Classifier(MulticlassAccuracy(3, average="micro")), max_epochs=3, sanity_val_batches=2
    )
    expected = (val[0] == val[1]).float().mean().item()
    found = rows.series("val/accuracy")
    assert [step for step, _ in found] == [4, 8, 12]
    assert [value for _, value in found] == pytest.approx([expected] * 3, rel=1e-6)
    trained = (train[0] == train[1]).float().mean().item()
    found = rows.series("train/acc_epoch")
    assert [value for _, value in found] == pytest.approx([trained] * 3, rel=1e-6)
    assert type(trainer.metrics["val/accuracy"]) is float
    assert "val/accuracy" in trainer.loop.progress_bar_names


@pytest.mark.parametrize("many", [True, False])
def test_a_collection_is_computed_over_the_whole_and_reset(many):
    def collection():
        return MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3), MeanAbsoluteError()])

    _, rows, _, val = fit_classifier(Classifier(collection(), many), max_epochs=2)
    expected = collection()(*val)
    for name, value in expected.items():
        found = rows.series(f"val/{name}")
        assert [step for step, _ in found] == [4, 8]
        assert [v for _, v in found] == pytest.approx([value.item()] * 2, rel=1e-6)


def test_torchmetrics_objects_over_several_dataloaders_are_kept_apart():
    class Two(Classifier):
        def __init__(self):
            super().__init__(None)
            self.metrics = nn.ModuleList(MulticlassAccuracy(3, average="micro") for _ in range(2))

        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.metrics[dataloader_idx].update(*batch)
            self.log("accuracy", self.metrics[dataloader_idx])

    data = [labels(23, 2), labels(11, 3)]
    trainer = Trainer(progress=False, checkpoint=False, loggers=False)
    values = trainer.validate(Two(), [DataLoader(TensorDataset(*one), batch_size=5) for one in data])
    expected = {f"val/{i}/accuracy": (a == b).float().mean().item() for i, (a, b) in enumerate(data)}
    assert values == pytest.approx(expected, rel=1e-6)


class Elsewhere(torch.Tensor):
    """Says that it lies on a device, so that it is kept until many are read at once."""

    @property
    def is_cpu(self):
        return False


def test_a_long_evaluation_keeps_no_more_than_so_many_values_waiting(monkeypatch):
    monkeypatch.setattr(metrics, "_MOST_PENDING", 10)
    store = metrics.MetricStore("val", print)
    most = 0
    for i in range(105):
        store.weight = 1 + i % 3
        store.log("loss", torch.tensor(float(i)).as_subclass(Elsewhere))
        store.log("largest", torch.tensor(float(i)).as_subclass(Elsewhere), reduce="max")
        most = max(most, sum(len(value.pending) for value in store._values.values()))
    assert 0 < most < 10
    expected = sum(i * (1 + i % 3) for i in range(105)) / sum(1 + i % 3 for i in range(105))
    assert store.close_epoch() == {"val/loss": pytest.approx(expected, rel=1e-12), "val/largest": 104.0}


def test_what_is_taken_back_leaves_what_waits_on_a_device_as_it_was(monkeypatch):
    monkeypatch.setattr(metrics, "_MOST_PENDING", 5)
    store = metrics.MetricStore("train", print)

    def log(name, value):
        store.log(name, torch.tensor(value).as_subclass(Elsewhere))

    log("read", 1.0)
    assert store.peek_window() == {"train/read": 1.0}
    log("loss", 1.0)
    take_back = store.keep()
    log("loss", 100.0)
    log("read", 100.0)
    log("other", 100.0)
    take_back()
    log("other", 3.0)
    log("loss", 5.0)
    log("read", 3.0)
    expected = {"train/read": 2.0, "train/loss": 3.0, "train/other": 3.0}
    assert store.peek_window() == expected
    assert store.close_epoch() == expected
