"""torchmetrics objects in the hooks of an end: whole while they run, reset afterwards."""

import warnings

import pytest
import torch
from helpers.loggers import NO_DEFAULTS, Rows
from helpers.trainers import fitted, quiet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from paceline import PacelineError, TrainModule
from paceline.callbacks import Callback
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files import reading
from paceline.trainer.metrics.metric_objects import metric_parts, update_count


@pytest.fixture(autouse=True)
def _no_warning():
    """Of torchmetrics: that compute() is called where nothing was counted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The ``compute`` method")
        yield


class Cat(Metric):
    """Its state is a list."""

    def __init__(self):
        super().__init__()
        self.add_state("seen", [])

    def update(self, prediction, label):
        self.seen.append((prediction == label).double())

    def compute(self):
        return torch.cat([one.flatten() for one in self.seen]).mean()


def accuracy():
    return MulticlassAccuracy(3, average="micro")


class Asks(TrainModule):
    """Logs its object in each step, and asks it again in the hook of each end."""

    def __init__(self, make=accuracy):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.acc, self.train_acc = make(), accuracy()

    def training_step(self, batch):
        self.train_acc.update(*batch)
        self.log("acc", self.train_acc)
        return self.weight * 1.0

    def validation_step(self, batch):
        self.acc.update(*batch)
        self.log("acc", self.acc)

    test_step = validation_step

    def predict_step(self, batch):
        self.validation_step(batch)
        return batch[0]

    def again(self, metric):
        value = metric.compute()
        self.log("computed", value if isinstance(value, torch.Tensor) else value["MulticlassAccuracy"])
        self.log("again", metric)

    def on_validation_end(self):
        self.again(self.acc)

    on_test_end = on_predict_end = on_validation_end

    def on_train_epoch_end(self):
        self.again(self.train_acc)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def labels(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 3, (count,), generator=generator) for _ in range(2))


def loader(count, seed, batch_size=5):
    return DataLoader(TensorDataset(*labels(count, seed)), batch_size)


def share(count, seed):
    predictions, found = labels(count, seed)
    return (predictions == found).double().mean().item()


@pytest.mark.parametrize("make", [accuracy, Cat])
def test_it_is_whole_in_the_hooks_and_reset_after_them(make):
    rows, module = Rows(), Asks(make)
    trainer = quiet(loggers=[rows, *NO_DEFAULTS], max_epochs=2, sanity_val_batches=2)
    trainer.fit(module, loader(14, 1), loader(23, 2))
    for name in ("acc", "computed", "again"):
        found = rows.series(f"val/{name}")
        assert [step for step, _ in found] == [3, 6]
        assert [value for _, value in found] == pytest.approx([share(23, 2)] * 2, rel=1e-6)
        found = rows.series("train/acc_epoch" if name == "acc" else f"train/{name}")
        assert [step for step, _ in found] == [3, 6]
        assert [value for _, value in found] == pytest.approx([share(14, 1)] * 2, rel=1e-6)
    assert update_count(module.acc) == update_count(module.train_acc) == 0


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_validate_and_test_do_the_same(verb):
    module = Asks()
    values = getattr(quiet(), verb)(module, loader(23, 2))
    assert list(values.values()) == pytest.approx([share(23, 2)] * 3, rel=1e-6)
    assert update_count(module.acc) == 0


def test_predict_does_the_same():
    module, trainer = Asks(), quiet()
    trainer.predict(module, loader(23, 2))
    found = [trainer.metrics[f"predict/{name}"] for name in ("acc", "computed", "again")]
    assert found == pytest.approx([share(23, 2)] * 3, rel=1e-6)
    assert update_count(module.acc) == 0


def test_a_collection_is_whole_too():
    module = Asks(lambda: MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)]))
    values = quiet().validate(module, loader(23, 2))
    assert values["val/computed"] == pytest.approx(values["val/MulticlassAccuracy"], rel=1e-6)
    assert not any(update_count(part) for part in metric_parts(module).values())


def test_callbacks_see_it_after_the_module():
    class Sees(Callback):
        def on_validation_end(self, trainer):
            trainer.log("seen", trainer.module.acc.compute())

    assert quiet(callbacks=Sees()).validate(Asks(), loader(23, 2))["val/seen"] == pytest.approx(
        share(23, 2)
    )


def test_it_is_reset_where_a_hook_fails():
    class Fails(Asks):
        def on_validation_end(self):
            raise RuntimeError("here")

        def on_train_epoch_end(self):
            raise RuntimeError("here")

    module = Fails()
    for run in (
        lambda: quiet().validate(module, loader(23, 2)),
        lambda: quiet().fit(module, loader(14, 1)),
    ):
        with pytest.raises(RuntimeError, match="here"):
            run()
    assert update_count(module.acc) == update_count(module.train_acc) == 0


def test_what_is_updated_in_steps_and_logged_in_the_hook_of_the_epoch_is_of_that_epoch():
    class Late(Asks):
        def training_step(self, batch):
            self.train_acc.update(*batch)
            return self.weight * 1.0

        def on_train_epoch_end(self):
            self.log("late", self.train_acc)

    rows = Rows()
    quiet(loggers=[rows, *NO_DEFAULTS], max_epochs=2).fit(Late(), loader(14, 1))
    found = rows.series("train/late")
    assert [step for step, _ in found] == [3, 6]
    assert [value for _, value in found] == pytest.approx([share(14, 1)] * 2, rel=1e-6)


# -- several dataloaders -------------------------------------------------------------------------


class Each(Asks):
    """An object for each dataloader."""

    def __init__(self, make=accuracy):
        super().__init__()
        self.each = nn.ModuleList(make() for _ in range(2))

    def validation_step(self, batch, batch_idx, dataloader_idx):
        self.each[dataloader_idx].update(*batch)
        self.log("acc", self.each[dataloader_idx])

    def on_validation_end(self):
        for number, metric in enumerate(self.each):
            self.log(f"computed-{number}", metric.compute())
            self.log(f"again-{number}", metric)


@pytest.mark.parametrize("make", [accuracy, Cat])
def test_the_object_of_each_dataloader_is_whole(make):
    module, data = Each(make), [loader(23, 2), loader(11, 3)]
    for _ in range(2):
        values = quiet().validate(module, data)
        for number, expected in enumerate((share(23, 2), share(11, 3))):
            for name in (f"{number}/acc", f"computed-{number}", f"again-{number}"):
                assert values[f"val/{name}"] == pytest.approx(expected, rel=1e-6)
        assert not any(update_count(metric) for metric in module.each)


def test_an_object_that_served_several_is_not_logged_for_none_of_them():
    class Shared(Asks):
        def on_validation_end(self):
            self.log("again", self.acc)

    module, data = Shared(), [loader(23, 2), loader(11, 3)]
    with pytest.raises(PacelineError, match="that served several dataloaders") as raised:
        quiet().validate(module, data)
    assert "trainer.metrics" in str(raised.value)

    class Once(Asks):
        def on_validation_end(self):
            pass

    values = quiet().validate(Once(), data)
    assert list(values.values()) == pytest.approx([share(23, 2), share(11, 3)], rel=1e-6)


# -- what else happens while it is whole ---------------------------------------------------------


def test_a_checkpoint_that_a_hook_saves_holds_it_as_reset(tmp_path):
    """The run that resumes has nothing of the epoch before in its next one."""

    class Saves(Asks):
        def on_train_epoch_end(self):
            super().on_train_epoch_end()
            if self.global_step == 3:
                self.trainer.save_checkpoint(tmp_path / "saved")
                self.log("after", self.train_acc.compute())

    rows, resumed, data = Rows(), Rows(), loader(14, 1)
    quiet(loggers=[rows, *NO_DEFAULTS], max_epochs=2).fit(Saves(), data)
    assert rows.series("train/after") == [(3, pytest.approx(share(14, 1), rel=1e-6))]
    assert files.read_manifest(tmp_path / "saved")["counters"]["global_step"] == 3
    state = reading.read_state(tmp_path / "saved", files.read_manifest(tmp_path / "saved"))
    assert state["ranks"][0]["metric_objects"]["train_acc"]["count"] == 0

    class Silent(Asks):
        def on_train_epoch_end(self):
            """It is called for the end of the first epoch once more."""

    quiet(loggers=[resumed, *NO_DEFAULTS], max_epochs=2).fit(Silent(), data, resume=tmp_path / "saved")
    assert resumed.series("train/acc_epoch") == rows.series("train/acc_epoch")[1:]


def test_an_evaluation_inside_the_hook_counts_for_itself():
    class Inside(Callback):
        def on_fit_start(self, trainer):
            self.evaluate = trainer.loop.evaluation_of(loader(11, 3), "other")

        def on_validation_end(self, trainer):
            if trainer.loop.is_fit_validation:
                self.found = self.evaluate()
                trainer.log("after", trainer.module.acc.compute())

    class Silent(Asks):
        def on_validation_end(self):
            pass

    inside = Inside()
    trainer = fitted(Silent(), loader(14, 1), loader(23, 2), max_epochs=1, callbacks=inside)
    assert inside.found["val/other/acc"] == pytest.approx(share(11, 3), rel=1e-6)
    assert trainer.metrics["val/after"] == pytest.approx(share(23, 2), rel=1e-6)
    assert trainer.metrics["val/acc"] == pytest.approx(share(23, 2), rel=1e-6)


def test_an_object_that_is_none_of_torchmetrics_is_reset_at_once():
    class Own:
        def __init__(self):
            self.values = []

        def compute(self):
            return sum(self.values)

        def reset(self):
            self.values.clear()

    class Logs(Asks):
        def __init__(self):
            super().__init__()
            self.own = Own()

        def validation_step(self, batch):
            self.own.values.append(len(batch[0]))
            self.log("count", self.own)

        def on_validation_end(self):
            self.log("left", float(len(self.own.values)))

    assert quiet().validate(Logs(), loader(23, 2)) == {"val/count": 23.0, "val/left": 0.0}


def test_a_mean_of_the_last_batch_does_not_replace_the_mean_of_all():
    class Means(Asks):
        def validation_step(self, batch):
            self.acc.update(batch[0].double())
            self.log("acc", self.acc)

    values = quiet().validate(Means(MeanMetric), loader(23, 2))
    expected = labels(23, 2)[0].double().mean().item()
    assert list(values.values()) == pytest.approx([expected] * 3, rel=1e-6)
