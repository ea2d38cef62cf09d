"""The loop: limits, validation within it, modes, accumulation, clipping, data sources, first lines."""

import copy
import gc
import math
import pickle
import random
import time
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.loggers import NO_DEFAULTS, Rows
from helpers.planted_clock import PlantedClock
from helpers.trainers import fitted, quiet
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from paceline import DataModule, PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, JSONLogger
from paceline.trainer.data.feed import limited
from paceline.trainer.state import Clock
from paceline.trainer.utils.paths import shown_path


class Line(TrainModule):
    """A linear fit; writes down what it was given."""

    def __init__(self, lr=0.1, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(2, 1, dtype=dtype)
        self.lr = lr
        self.batches, self.validated = [], []

    def training_step(self, batch):
        self.batches.append(batch[0].flatten().tolist())
        return F.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        self.validated.append(batch[0].flatten().tolist())
        return F.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def loader(samples=8, batch_size=4, shuffle=False, dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 2, generator=generator, dtype=dtype)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size, shuffle=shuffle)


class Stream(IterableDataset):
    """Data that does not tell its length."""

    def __init__(self, samples=8):
        self.samples = samples

    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        for _ in range(self.samples):
            x = torch.randn(2, generator=generator)
            yield x, x.sum(0, keepdim=True)


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class At(Callback):
    """Calls a function at step boundaries."""

    def __init__(self, function):
        self.function = function

    def on_step_boundary(self, trainer):
        self.function(trainer)


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [8, 40])  # also where no epoch ends before, and nothing is logged
def test_max_time(capsys, monkeypatch, samples):
    clock = PlantedClock()
    monkeypatch.setattr(time, "perf_counter", clock)

    class Slow(Line):
        def training_step(self, batch):
            clock.now += 0.04
            return super().training_step(batch)

    trainer = fitted(Slow(), loader(samples), max_time="0.1s", log_every="1000st")
    assert trainer.global_step == 3  # the first after which 0.1 s are over
    assert "max_time=0.1s reached" in trainer.stop_reason
    assert "unknown in total (until 0.1s)" in capsys.readouterr().out


def test_without_a_limit_it_is_one_epoch_and_the_first_lines_say_so(capsys):
    trainer = fitted(Line(), loader())
    assert (trainer.global_step, trainer.epoch) == (2, 1)
    assert "no limit was given: one epoch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("limits", "end", "reason"),
    [
        ({"max_epochs": 3}, (6, 3), "max_epochs=3 reached"),
        ({"max_steps": 5}, (5, 2), "max_steps=5 reached"),
        ({"max_epochs": 1, "max_steps": 5, "max_time": "1h"}, (2, 1), "max_epochs=1 reached"),
        ({"max_epochs": 9, "max_steps": 5, "max_time": "1h"}, (5, 2), "max_steps=5 reached"),
        (
            {"max_epochs": 9, "callbacks": At(lambda t: t.global_step == 3 and t.stop("enough"))},
            (3, 1),
            "enough",
        ),
    ],
)
def test_the_first_limit_reached_ends_the_run(limits, end, reason):
    trainer = fitted(Line(), loader(), **limits)
    assert (trainer.global_step, trainer.epoch, trainer.stop_reason) == (*end, reason)


def test_a_time_limit_comes_before_many_epochs_and_steps():
    trainer = fitted(Line(), loader(), max_epochs=9**9, max_steps=9**9, max_time="0.02s")
    assert "max_time" in trainer.stop_reason


def test_the_memory_of_a_step_is_free_when_its_epoch_has_ended():
    class Keeps(Line):
        def training_step(self, batch):
            if self.fails and self.batches:
                raise ArithmeticError("on purpose")
            self.batch, loss = weakref.ref(batch[0]), super().training_step(batch)
            self.loss = weakref.ref(loss)
            return loss

    class Looks(Callback):
        def on_train_epoch_start(self, trainer):
            if trainer.epoch:
                found.append((module.batch(), module.loss()))

        def on_fit_end(self, trainer):
            found.append((module.batch(), module.loss()))

    found, module = [], Keeps()
    module.fails = False
    trainer = fitted(module, loader(), max_epochs=2, callbacks=Looks(), accumulate=2)
    assert found == [(None, None), (None, None)]
    module.fails, module.batches = True, []
    with suppress(ArithmeticError):
        trainer.fit(module, loader())
    gc.collect()
    assert (len(module.batches), module.batch(), module.loss()) == (1, None, None)


def test_fit_twice_trains_again_from_the_module_as_it_stands():
    module, trainer = Line(), quiet(max_epochs=2)
    trainer.fit(module, loader())
    middle = weights(module)
    trainer.fit(module, loader())
    assert (trainer.global_step, trainer.epoch) == (4, 2)  # a run of its own
    other = Line()
    other.load_state_dict(dict(zip(other.state_dict(), middle, strict=True)))
    quiet(max_epochs=2).fit(other, loader())
    assert not same(weights(module), middle)
    assert same(weights(module), weights(other))


def test_fit_twice_with_every_default_callback_makes_two_whole_runs(tmp_path):
    trainer = Trainer(max_epochs=1, run_dir=tmp_path / "r", callbacks=[Checkpoint(monitor="val/loss")])
    module = Line()
    first = trainer.fit(module, loader(), loader())
    second = trainer.fit(module, loader(), loader())
    assert [first.folder.name, second.folder.name] == ["1", "2"]
    for run in (first, second):
        assert [path.name for path in run.checkpoints] == ["step-00000002"]
        assert run.best == run.latest == run.checkpoints[0]
        assert run.metrics["train/loss"].steps == [1, 2]


def test_the_first_reason_to_stop_is_kept_and_the_module_can_give_one():
    class Stops(Line):
        def training_step(self, batch):
            self.trainer.stop("first")
            self.trainer.stop("second")
            return super().training_step(batch)

    trainer = fitted(Stops(), loader(), max_epochs=9)
    assert (trainer.global_step, trainer.stop_reason) == (1, "first")


def test_a_stop_does_not_outlive_its_run():
    module, trainer = Line(), quiet(max_epochs=2, callbacks=At(lambda t: t.stop("once")))
    trainer.fit(module, loader())
    trainer.callbacks[0].function = lambda t: None
    trainer.fit(module, loader())
    assert trainer.global_step == 4


# -- limits on batches ---------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "steps"), [(2, 2), (1, 1), (1.0, 4), (0.5, 2), (None, 4), (99, 4)])
def test_limit_train_batches(limit, steps):
    trainer = fitted(Line(), loader(16, 4), limit_train_batches=limit, max_epochs=2)
    assert (trainer.global_step, trainer.steps_per_epoch) == (2 * steps, steps)


def test_limits_hold_for_data_without_length():
    data = DataLoader(Stream(), batch_size=2)
    assert fitted(Line(), data, limit_train_batches=2, max_epochs=2).global_step == 4


@pytest.mark.parametrize(("limit", "batches"), [(2, 2), (1, 1), (1.0, 4), (0.5, 2), (None, 4)])
def test_limits_of_evaluation(limit, batches):
    module = Line()
    module.test_step = module.predict_step = module.validation_step
    settings = {f"limit_{kind}_batches": limit for kind in ("val", "test", "predict")}
    trainer = quiet(**settings)
    for verb in ("validate", "test", "predict"):
        module.validated.clear()
        getattr(trainer, verb)(module, loader(16, 4))
        assert len(module.validated) == batches, verb


def test_a_part_of_the_batches_is_not_rounded_away():
    assert limited(100, 0.29) == 29  # 100 * 0.29 is 28.999999999999996
    assert limited(3, 0.1) == 1
    assert limited(10, 0.0) == 0


def test_fast_dev_run_is_one_step_and_one_batch_and_writes_nothing(tmp_path):
    module = Line()
    trainer = Trainer(
        fast_dev_run=True,
        max_epochs=7,
        callbacks=[Checkpoint(every=1, monitor="val/loss"), JSONLogger()],
        run_dir=tmp_path / "runs",
    )
    trainer.fit(module, loader(), loader())
    assert trainer.global_step == len(module.batches) == 1
    assert len(module.validated) in (1, 2)  # one for the sanity pass, one for the step
    assert trainer.folder is None
    assert list(tmp_path.iterdir()) == []


def test_overfit_batches_trains_and_validates_on_the_same_few():
    module = Line()
    quiet(overfit_batches=2, max_epochs=3, sanity_val_batches=0).fit(
        module, loader(40, 4, shuffle=True), loader(40, 4, seed=9)
    )
    assert len(module.batches) == 6
    assert module.batches[:2] == module.batches[2:4] == module.batches[4:]
    assert module.validated == module.batches


# -- validation ----------------------------------------------------------------------------------


class Validations(Callback):
    """When validation was, the sanity pass left out."""

    def __init__(self):
        self.steps = []

    def on_validation_end(self, trainer):
        if trainer.loop.is_fit_validation:
            self.steps.append(trainer.global_step)


STREAM = DataLoader(Stream(), batch_size=4)


@pytest.mark.parametrize(
    ("data", "every", "epochs", "steps"),
    [
        (loader(16, 4), "1ep", 3, [4, 8, 12]),
        (loader(16, 4), "2ep", 5, [8, 16]),
        (loader(16, 4), "0.5ep", 2, [2, 4, 6, 8]),
        (loader(20, 4), "0.5ep", 2, [3, 5, 8, 10]),
        (loader(16, 4), 7, 4, [7, 14]),
        (loader(16, 4), "7st", 4, [7, 14]),
        (loader(16, 4), None, 3, []),
        (STREAM, "1ep", 2, [2, 4]),  # the end of an epoch is not known ahead
    ],
)
def test_validate_every(data, every, epochs, steps):
    seen = Validations()
    quiet(validate_every=every, max_epochs=epochs, callbacks=seen).fit(Line(), data, loader())
    assert seen.steps == steps


def test_validate_every_so_many_seconds(monkeypatch):
    # A step is an eighth of a second on this clock.
    monkeypatch.setattr(Clock, "seconds", lambda self: self._state.global_step / 8)
    seen = Validations()
    quiet(validate_every="0.5s", max_steps=14, callbacks=seen).fit(Line(), loader(20, 4), loader())
    assert seen.steps == [4, 8, 12]


def test_a_point_that_is_due_twice_happens_once():
    # The stream's epoch ends after its last step: log point and validation are asked for again there.
    rows, seen = Rows(), Validations()
    trainer = quiet(
        max_epochs=1, log_every=2, validate_every=2, callbacks=seen, loggers=[rows, *NO_DEFAULTS]
    )
    trainer.fit(Line(), DataLoader(Stream(), batch_size=4), loader())
    assert seen.steps == [2]
    assert [step for step, _ in rows.series("perf/samples_per_second")] == [1, 2]


def test_the_sanity_pass_leaves_no_values():
    during, later = [], []

    class Look(Callback):
        def on_validation_end(self, trainer):
            if not trainer.loop.is_fit_validation:
                during.append(dict(trainer.metrics))

        def on_train_epoch_start(self, trainer):
            later.append(dict(trainer.metrics))

    module, rows = Line(), Rows()
    quiet(max_steps=1, callbacks=Look(), loggers=[rows, *NO_DEFAULTS]).fit(module, loader(), loader(40, 4))
    assert list(during[0]) == ["val/loss"]
    assert later == [{}]
    assert len(module.validated) == 2  # sanity_val_batches
    assert rows.rows[0]["step"] == 1


def test_the_values_of_the_sanity_pass_are_in_no_mean():
    module = Line(lr=0.0)
    trainer = quiet(max_epochs=1)
    data = loader(12, 4)
    trainer.fit(module, loader(), data)
    x, y = data.dataset.tensors
    assert trainer.metrics["val/loss"] == pytest.approx(F.mse_loss(module.net(x), y).item(), rel=1e-6)


def test_sanity_val_batches_zero():
    module = Line()
    quiet(max_steps=1, sanity_val_batches=0, validate_every=None).fit(module, loader(), loader())
    assert module.validated == []


class Drawing(Line):
    """Draws everywhere: dropout in training, every generator in validation."""

    def __init__(self):
        super().__init__(lr=1e-3)
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Dropout(0.5), nn.Linear(16, 1))

    def validation_step(self, batch):
        torch.rand(3), random.random(), np.random.rand()
        self.net.train()  # dropout draws here too
        return super().validation_step(batch)


class Noisy(Dataset):
    """Draws in each sample."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        x = torch.rand(2) + random.random() + np.random.rand()
        return x, x.sum(0, keepdim=True)


def test_training_is_bit_identical_with_and_without_validation():
    ends = []
    for validate_every in ("0.5ep", None):
        torch.manual_seed(5)
        module = Drawing()
        val = DataLoader(Noisy(), batch_size=4, shuffle=True) if validate_every else None
        quiet(max_epochs=3, validate_every=validate_every or "1ep").fit(
            module, DataLoader(Noisy(), batch_size=4, shuffle=True), val
        )
        ends.append((weights(module), torch.rand(1).item(), random.random(), np.random.rand()))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]


def test_step_without_data_is_said_once(capsys):
    quiet(max_epochs=3).fit(Line(), loader())
    assert capsys.readouterr().out.count("there is no validation data") == 1


def test_data_without_step_is_said_once(capsys):
    class Trains(Line):
        validation_step = TrainModule.validation_step

    quiet(max_epochs=3).fit(Trains(), loader(), loader())
    assert capsys.readouterr().out.count("has no validation_step") == 1


@pytest.mark.parametrize("kind", [list, dict])
def test_several_validation_dataloaders_have_names_of_their_own(kind):
    small, large = loader(4, 4), loader(12, 4, seed=7)
    data = [small, large] if kind is list else {"clean": small, "noisy": large}
    names = ["0", "1"] if kind is list else ["clean", "noisy"]

    class Both(Line):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.log("number", float(dataloader_idx))
            return super().validation_step(batch)

    module = Both()
    trainer = fitted(module, loader(), data, max_epochs=1)
    for number, (name, one) in enumerate(zip(names, (small, large), strict=True)):
        x, y = one.dataset.tensors
        expected = F.mse_loss(module.net(x), y).item()
        assert trainer.metrics[f"val/{name}/loss"] == pytest.approx(expected, rel=1e-5)
        assert trainer.metrics[f"val/{name}/number"] == number
    assert "val/loss" not in trainer.metrics


def test_one_of_several_dataloaders_can_be_monitored():
    score = Checkpoint(monitor="val/clean/loss")
    Trainer(max_epochs=1, progress=False, loggers=False, callbacks=score).fit(
        Line(), loader(), {"clean": loader(), "noisy": loader(seed=7)}
    )
    assert score.best_score > 0


# -- modes ---------------------------------------------------------------------------------------


class Parts(Line):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.BatchNorm1d(2).requires_grad_(False)
        self.backbone = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))

    def training_step(self, batch):
        return F.mse_loss(self.net(self.backbone(self.norm(batch[0]))), batch[1])


def modes(module):
    return {name: part.training for name, part in module.named_modules()}


def test_each_submodules_mode_is_put_back_after_validation_and_fit():
    module = Parts()
    module.frozen.eval()
    module.backbone.eval()
    left = modes(module)
    inside, after = [], []

    class Look(Callback):
        def on_validation_end(self, trainer):
            inside.append(set(modes(trainer.module).values()))

        def on_train_epoch_end(self, trainer):
            after.append(modes(trainer.module))

        def on_train_epoch_start(self, trainer):
            after.append(modes(trainer.module))

    quiet(max_epochs=2, callbacks=Look()).fit(module, loader(), loader())
    assert inside == [{False}] * 3
    assert after == [left] * 4
    assert modes(module) == left


def test_modes_are_put_back_when_validation_fails():
    class Breaks(Parts):
        def validation_step(self, batch):
            raise RuntimeError("broken")

    module = Breaks()
    module.backbone.eval()
    left = modes(module)
    with pytest.raises(RuntimeError, match="broken"):
        quiet().fit(module, loader(), loader())
    assert modes(module) == left


# -- batches and gradients -----------------------------------------------------------------------


def test_nested_batches_reach_the_step_as_they_are():
    class Nested(Line):
        def training_step(self, batch, batch_idx):
            assert set(batch) == {"input", "extra"}
            self.batches.append((batch["extra"]["name"], batch_idx))
            x, y = batch["input"]
            return F.mse_loss(self.net(x), y)

    class Items(Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            x = torch.full((2,), float(index))
            return {"input": (x, x[:1]), "extra": {"name": f"n{index}"}}

    module = Nested()
    trainer = fitted(module, DataLoader(Items(), batch_size=2), max_epochs=1)
    assert module.batches == [(["n0", "n1"], 0), (["n2", "n3"], 1), (["n4"], 2)]
    assert trainer.counters.samples == 5


def test_any_iterable_of_batches_serves():
    module = Line()
    batches = [tuple(batch) for batch in loader(12, 4)]

    class Batches:
        def __iter__(self):
            return iter(batches)

    quiet(max_epochs=2).fit(module, Batches(), Batches())
    assert len(module.batches) == 6


@pytest.mark.parametrize(
    ("used_up", "message"),
    [("training", "no batch a second time"), ("validation", r"no batch(.|\n)*exhausted")],
)
def test_a_generator_is_used_up_after_one_epoch_and_reported(used_up, message):
    batches = [tuple(batch) for batch in loader(12, 4)]
    once = (batch for batch in batches)
    data = (once, None) if used_up == "training" else (batches, once)
    with pytest.raises(PacelineError, match=message):
        quiet(max_epochs=2).fit(Line(), *data)


@pytest.mark.parametrize("accumulate", [2, 3])
def test_accumulated_ragged_micro_batches_equal_the_single_big_batch(accumulate):
    ends = []
    for batch_size, many in ((4, accumulate), (4 * accumulate, 1)):
        module = Line(dtype=torch.float64)
        trainer = quiet(accumulate=many, max_epochs=3)
        trainer.fit(module, loader(29, batch_size, shuffle=True, dtype=torch.float64))
        ends.append((weights(module), trainer.global_step, trainer.metrics["train/loss_epoch"]))
    assert ends[0][1] == ends[1][1] == 3 * math.ceil(29 / (4 * accumulate))
    for one, two in zip(ends[0][0], ends[1][0], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    assert ends[0][2] == pytest.approx(ends[1][2], rel=1e-12)


class Tokens(TrainModule):
    """A loss that is a mean over the tokens of a mask, returned with their count."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(1, 1, dtype=torch.float64)

    def training_step(self, batch):
        x, mask = batch
        lost = (self.net(x.unsqueeze(-1)).squeeze(-1) - 2 * x).pow(2)
        tokens = mask.sum()
        return {"loss": (lost * mask).sum() / tokens, "weight": tokens, "tokens_seen": 1.0}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def tokens(batch_size):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(22, 6, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 7, (22, 1), generator=generator)
    return DataLoader(TensorDataset(x, (torch.arange(6) < lengths).double()), batch_size, shuffle=True)


def test_a_returned_weight_with_accumulation_equals_the_single_big_batch():
    ends = []
    for batch_size, many in ((2, 4), (8, 1)):
        module = Tokens()
        trainer = fitted(module, tokens(batch_size), accumulate=many, max_epochs=4, clip_grad_norm=0.5)
        ends.append((weights(module), trainer.global_step, trainer.metrics["train/loss_epoch"]))
    assert ends[0][1] == ends[1][1] == 12
    for one, two in zip(ends[0][0], ends[1][0], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-12)
    assert ends[0][2] == pytest.approx(ends[1][2], rel=1e-11)


@pytest.mark.parametrize("weighted", [0, 1])
def test_a_weight_for_some_micro_batches_only_is_refused(weighted):
    class Sometimes(Tokens):
        def training_step(self, batch, batch_idx):
            found = super().training_step(batch)
            return found if batch_idx % 2 == weighted else found["loss"]

    with pytest.raises(PacelineError, match="for some micro-batches"):
        quiet(accumulate=2).fit(Sometimes(), tokens(2))


def updates(**settings):
    module = Line(lr=1.0)
    before = weights(module)
    quiet(max_steps=1, **settings).fit(module, loader())
    return torch.cat([(a - b).flatten() for a, b in zip(before, weights(module), strict=True)])


def test_clip_by_norm():
    free, clipped = updates(), updates(clip_grad_norm=0.1)
    assert free.norm() > 0.2
    assert clipped.norm().item() == pytest.approx(0.1, rel=1e-4)
    torch.testing.assert_close(clipped / clipped.norm(), free / free.norm(), rtol=1e-4, atol=1e-6)


def test_clip_by_value():
    free, clipped = updates(), updates(clip_grad_value=0.05)
    torch.testing.assert_close(clipped, free.clamp(-0.05, 0.05), rtol=1e-4, atol=1e-6)
    assert free.abs().max() > 0.05


def test_a_returned_mapping_and_log_are_the_same():
    class Returns(Line):
        def training_step(self, batch):
            loss = super().training_step(batch)
            return {"loss": loss, "mean": batch[0].mean()}

        def validation_step(self, batch):
            return {"loss": super().validation_step(batch), "mean": batch[0].mean()}

    class Logs(Line):
        def training_step(self, batch):
            self.log("mean", batch[0].mean())
            return super().training_step(batch)

        def validation_step(self, batch):
            self.log_dict({"loss": super().validation_step(batch), "mean": batch[0].mean()})

    found = []
    for module in (Returns(), Logs()):
        trainer = fitted(module, loader(18, 4), loader(10, 4), max_epochs=2, log_every=3)
        found.append({k: v for k, v in trainer.metrics.items() if not k.startswith("perf/")})
    assert found[0] == found[1]
    assert {"train/mean", "train/mean_epoch", "val/mean", "val/loss"} <= set(found[0])


# -- first lines ---------------------------------------------------------------------------------


def test_the_first_lines_are_at_most_six_and_of_one_form(capsys, tmp_path):
    module = Parts()
    module.backbone.eval()
    trainer = quiet(max_epochs=2, accumulate=3, run_dir=tmp_path / "r", name="trial")
    trainer.fit(module, loader(26, 4), loader())
    lines = [line for line in capsys.readouterr().out.splitlines() if "Checks(skip=" not in line]
    lines = [line for line in lines if not line.startswith("warning: ")]
    assert len(lines) == 6
    assert "trial" in lines[0]
    assert lines[0].endswith(f" in {shown_path(trainer.folder)}")
    assert all(part in lines[1] for part in ("1 device", "cpu", "single", "32"))
    assert lines[2] == "global batch 12 = 4 samples x 1 rank x 3 micro-batches"
    assert lines[3].startswith("3 steps per epoch, 6 in total")
    assert lines[4] == "starts fresh"
    assert lines[5].startswith("note: ")


def test_log_txt_holds_what_was_said(tmp_path, capsys):
    trainer = fitted(Line(), loader(), max_steps=1, run_dir=tmp_path / "r")
    said = capsys.readouterr().out.splitlines()
    logged = [line.partition(" ")[2] for line in (trainer.folder / "log.txt").read_text().splitlines()]
    assert said == logged


# -- the module ----------------------------------------------------------------------------------


def test_after_fit_the_module_can_be_copied_and_pickled():
    module = Line(lr=0.2)
    quiet(max_steps=2).fit(module, loader(), loader())
    assert "_trainer" not in vars(module)
    with pytest.raises(PacelineError, match="only while a Trainer runs"):
        _ = module.trainer
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert same(weights(module), weights(twin))
        assert twin.hparams == module.hparams == {"lr": 0.2, "dtype": torch.float32}
        quiet(max_steps=1).fit(twin, loader())
        assert not same(weights(module), weights(twin))


def test_after_an_error_the_module_holds_no_trainer():
    module = Line()
    module.training_step = lambda batch: {}["gone"]
    with pytest.raises(KeyError):
        quiet().fit(module, loader())
    assert "_trainer" not in vars(module)


def test_a_step_can_be_called_by_hand_outside_a_run():
    class Logs(Line):
        def training_step(self, batch):
            self.log("seen", 1.0)
            return super().training_step(batch)

    module = Logs()
    assert module.training_step(next(iter(loader()))).requires_grad
    assert (module.global_step, module.epoch) == (0, 0)


def test_hparams_are_the_outermost_constructors():
    class Base(TrainModule):
        def __init__(self, width, depth=2):
            super().__init__()

    class Outer(Base):
        def __init__(self, size, *rest, name="n", **more):
            super().__init__(width=size * 2)

    assert Base(3).hparams == {"width": 3, "depth": 2}
    assert Outer(4, name="x", extra=True).hparams == {"size": 4, "name": "x", "extra": True}
    assert Outer(4, 5, 6).hparams == {"size": 4, "rest": (5, 6), "name": "n"}


def test_the_module_knows_where_the_run_is():
    class Knows(Line):
        def training_step(self, batch):
            self.batches.append((self.global_step, self.epoch, self.trainer.total_steps))
            return F.mse_loss(self.net(batch[0]), batch[1])

    module = Knows()
    quiet(max_epochs=2).fit(module, loader())
    assert module.batches == [(0, 0, 4), (1, 0, 4), (2, 1, 4), (3, 1, 4)]


# -- where data comes from -----------------------------------------------------------------------


class Data(DataModule):
    def __init__(self):
        self.calls = []

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(f"setup {stage}")
        self.data = loader(8, 4, seed=11)

    def train_dataloader(self):
        return self.data

    def val_dataloader(self):
        return self.data

    def test_dataloader(self):
        return self.data

    def teardown(self, stage):
        self.calls.append(f"teardown {stage}")


def test_a_datamodule_is_prepared_set_up_read_and_torn_down():
    data, module = Data(), Line()
    module.test_step = module.validation_step
    trainer = quiet(max_epochs=1, sanity_val_batches=0)
    trainer.fit(module, datamodule=data)
    assert data.calls == ["prepare_data", "setup fit", "teardown fit"]
    assert module.batches == module.validated == [b[0].flatten().tolist() for b in data.data]
    trainer.test(module, datamodule=data)
    assert data.calls[3:] == ["prepare_data", "setup test", "teardown test"]


def test_a_datamodule_in_the_dataloaders_place_is_a_datamodule():
    data, module = Data(), Line()
    quiet(max_epochs=1, sanity_val_batches=0).fit(module, data)
    assert data.calls == ["prepare_data", "setup fit", "teardown fit"]
    assert module.validated == module.batches != []


def test_the_same_methods_on_the_module_serve():
    class Own(Line, Data):
        def __init__(self):
            Line.__init__(self)
            self.calls = []

        predict_dataloader = Data.test_dataloader

    module = Own()
    quiet(max_epochs=1, sanity_val_batches=0).fit(module)
    assert module.calls == ["prepare_data", "setup fit", "teardown fit"]
    assert len(module.batches) == len(module.validated) == 2


def test_arguments_come_before_the_datamodule_and_that_before_the_module():
    class Own(Line):
        def train_dataloader(self):
            return loader(4, 4, seed=21)

        val_dataloader = train_dataloader

    class TrainOnly(DataModule):
        def train_dataloader(self):
            return loader(4, 4, seed=22)

    def first(seed):
        return next(iter(loader(4, 4, seed=seed)))[0].flatten().tolist()

    module = Own()
    trainer = quiet(max_steps=1, sanity_val_batches=0)
    trainer.fit(module, loader(4, 4, seed=23), datamodule=TrainOnly())
    trainer.fit(module, datamodule=TrainOnly())
    trainer.fit(module)
    assert module.batches == [first(23), first(22), first(21)]
    assert module.validated == [first(21)] * 3


def test_no_training_data_is_an_error_that_shows_where_it_may_come_from():
    with pytest.raises(PacelineError, match="there is no training data") as raised:
        quiet().fit(Line())
    assert "train_dataloader" in str(raised.value)


def test_runs_go_to_numbered_folders_of_the_modules_name(tmp_path):
    folders = [quiet(max_steps=1, run_dir=tmp_path / "r").fit(Line(), loader()).folder for _ in range(2)]
    assert folders == [tmp_path / "r" / "line" / "1", tmp_path / "r" / "line" / "2"]
    assert all(isinstance(folder, Path) and (folder / "config.yaml").is_file() for folder in folders)
