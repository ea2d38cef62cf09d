"""find_learning_rate measures what a plain loop would, and leaves everything as it was."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.jobs import load_job
from helpers.ranks import run_ranks
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from paceline import DataModule, PacelineError, TrainModule, tools
from paceline.callbacks import Callback
from paceline.tools.rerun.replay_trainer import ReplayTrainer

JOB = Path(__file__).with_name("tuning_job.py")
job = load_job(JOB)
Quadratic, loader, quiet = job.Quadratic, job.loader, job.quiet


def by_hand(rates, batch_size=4, clip=math.inf, beta=0.98):
    """The losses of SGD on the quadratic with these rates, their corrected average, the steepest rate."""
    w, losses, smoothed, average = torch.full((4,), 3.0, dtype=torch.float64), [], [], 0.0
    batches = job.X.split(batch_size)
    for step, rate in enumerate(rates):
        squares = batches[step % len(batches)].square().mean()
        losses.append((squares * w.square().mean()).item())
        gradient = 2 * squares * w / 4
        w = w - rate * gradient * min(1.0, clip / (gradient.norm().item() + 1e-6))  # as torch clips
        average = beta * average + (1 - beta) * losses[-1]
        smoothed.append(average / (1 - beta ** (step + 1)))
    first, last = len(rates) // 10, min(int(np.argmin(smoothed)), len(rates) - 2)
    steepest = first + int(np.gradient(smoothed)[first : last + 1].argmin())
    return losses, smoothed, rates[steepest]


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("exponential", {}),
        ("linear", {}),
        ("linear", {"clip_grad_norm": 0.5}),
        ("exponential", {"accumulate": 2}),
    ],
)
def test_the_losses_and_the_suggestion_are_those_of_a_plain_loop(mode, settings):
    search = tools.find_learning_rate(
        quiet(**settings), Quadratic(), loader(), lowest=1e-3, highest=1.5, steps=50, mode=mode
    )
    rates = np.geomspace(1e-3, 1.5, 50) if mode == "exponential" else np.linspace(1e-3, 1.5, 50)
    batch_size = 4 * settings.get("accumulate", 1)
    losses, smoothed, suggestion = by_hand(rates, batch_size, settings.get("clip_grad_norm", math.inf))
    assert search.rates == pytest.approx(rates, rel=1e-9)
    assert search.losses == pytest.approx(losses, rel=1e-6)
    assert search.smoothed == pytest.approx(smoothed, rel=1e-6)
    assert search.suggestion == pytest.approx(suggestion, rel=1e-9)
    assert (search.reason, search.diverged_at) == (None, None)
    assert str(search) == f"learning rate {suggestion:.3g}: there the loss of Quadratic falls fastest"


def test_nothing_of_the_caller_changes(tmp_path):
    class Drawing(Quadratic):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(2, 2).requires_grad_(False).eval()
            self.norm = nn.BatchNorm1d(1)

        def training_step(self, batch):
            return super().training_step([self.norm(batch[0] + torch.randn_like(batch[0]))])

    def look():
        values = {name: value.clone() for name, value in module.state_dict().items()}
        flags = [p.requires_grad for p in module.parameters()] + [m.training for m in module.modules()]
        counters = (
            trainer.global_step,
            trainer.epoch,
            trainer.counters.samples,
            dict(trainer.metrics),
            trainer.folder,
        )
        files = {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        return values, (
            flags,
            counters,
            files,
            [*vars(module)],
            job.generators(),
            order.get_state().tolist(),
        )

    trainer = quiet(max_epochs=1, run_dir=tmp_path / "runs")
    trainer.fit(Quadratic(), loader())
    torch.manual_seed(11)
    module, order = Drawing(), torch.Generator().manual_seed(3)
    data = TensorDataset(job.X)
    shuffled = DataLoader(data, 4, sampler=RandomSampler(data, generator=order))
    before, others = look()
    tools.find_learning_rate(trainer, module, shuffled, highest=0.1, steps=20)
    after, others_after = look()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert others == others_after
    assert trainer.module is not module


def test_a_stream_is_left_where_it_was():
    stream = job.Stream()
    next(iter(stream))
    tools.find_learning_rate(quiet(), Quadratic(), DataLoader(stream, 4), steps=20)
    assert stream.given == 1


def test_data_that_can_be_read_once_only_is_refused():
    batches = iter([[job.X[:4]]] * 9)
    with pytest.raises(PacelineError, match="can be read once only"):
        tools.find_learning_rate(quiet(), Quadratic(), batches, steps=5)
    assert len([*batches]) == 9


def test_a_datamodule_is_set_up_for_the_search_alone():
    class Data(DataModule):
        def setup(self, stage):
            self.dataset = TensorDataset(job.X)

        def train_dataloader(self):
            return DataLoader(self.dataset, 4)

    data = Data()
    search = tools.find_learning_rate(quiet(), Quadratic(), data, steps=20)
    assert len(search.rates) == 20
    assert not hasattr(data, "dataset")


class Groups(TrainModule):
    """Two groups, and schedules that would change everything about them."""

    def __init__(self, schedule=None):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        self.schedule, self.seen = schedule, []

    def training_step(self, batch):
        group = self.trainer.optimizers[0].param_groups
        assert isinstance(group[1]["lr"], torch.Tensor)  # as a captured graph needs it
        SEEN.append([float(g["lr"]) for g in group] + [group[0]["momentum"]])
        return (batch[0] * (self.a + self.b)).square().mean()

    def configure_optimizers(self):
        groups = [{"params": [self.a], "lr": 0.2}, {"params": [self.b], "lr": torch.tensor(0.05)}]
        optimizer = torch.optim.SGD(groups, momentum=0.5)
        if self.schedule is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.schedule(optimizer)}


SEEN: list = []
SCHEDULES = {
    "none": None,
    "warm-up": lambda o: {
        "scheduler": torch.optim.lr_scheduler.LambdaLR(o, lambda step: step / 100),
        "interval": "step",
    },
    "of momentum": lambda o: {
        "scheduler": torch.optim.lr_scheduler.CyclicLR(o, [0.2, 0.05], [2.0, 0.5], cycle_momentum=False),
        "interval": "step",
    },
    "of a validation": lambda o: {
        "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(o),
        "monitor": "val/loss",
    },
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_groups_keep_their_ratio_and_schedules_are_left_out(name):
    SEEN.clear()
    search = tools.find_learning_rate(quiet(), Groups(SCHEDULES[name]), loader(), highest=0.1, steps=20)
    expected = [[rate, rate / 4, 0.5] for rate in search.rates]
    assert [pytest.approx(one, rel=1e-6) for one in expected] == SEEN
    assert len(SEEN) == 20


def test_a_first_group_without_a_rate_has_no_ratio():
    class Zero(Quadratic):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    with pytest.raises(PacelineError, match="the first group's, which is 0"):
        tools.find_learning_rate(quiet(), Zero(), loader())


# -- how it ends ---------------------------------------------------------------------------------


def test_a_loss_that_rises_too_high_ends_the_search():
    rates = list(np.geomspace(0.1, 100, 60))
    losses, smoothed, _ = by_hand(rates)
    first = next(i for i in range(60) if smoothed[i] > 2 * min(smoothed[: i + 1]))
    found = {
        factor: tools.find_learning_rate(
            quiet(), Quadratic(), loader(), lowest=0.1, highest=100.0, steps=60, stop_factor=factor
        )
        for factor in (2.0, None)
    }
    assert len(found[2.0].losses) == first + 1 < 60
    assert found[2.0].diverged_at == pytest.approx(rates[first])
    assert f"and it diverges at {rates[first]:.3g}" in str(found[2.0])
    assert found[None].losses == pytest.approx(losses, rel=1e-6)
    assert found[None].diverged_at is None


def test_a_factor_bounds_nothing_where_losses_are_negative():
    class Negative(Quadratic):
        def training_step(self, batch):
            return super().training_step(batch) - 1000

    search = tools.find_learning_rate(quiet(), Negative(), loader(), lowest=1e-3, steps=20)
    assert len(search.losses) == 20


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_search(value):
    class Breaks(Quadratic):
        def training_step(self, batch):
            return super().training_step(batch) * (value if self.trainer.global_step == 15 else 1)

    search = tools.find_learning_rate(quiet(), Breaks(), loader(), lowest=0.01, steps=30, stop_factor=None)
    assert len(search.losses) == len(search.smoothed) == len(search.rates) == 15
    assert search.diverged_at == pytest.approx(np.geomspace(0.01, 1, 30)[15])
    assert search.suggestion in search.rates


FLAT = "the smoothed loss does not fall after the first tenth of the steps"


def test_a_descent_after_the_loss_has_diverged_is_not_suggested():
    class Falls(Quadratic):
        """Falls slowly, jumps, and falls fast, but not as low."""

        def training_step(self, batch):
            step = self.trainer.global_step
            return self.w.sum() * 0 + (1 - 0.01 * step if step < 30 else 9 if step < 35 else 0.9)

    search = tools.find_learning_rate(quiet(), Falls(), loader(), steps=60)
    assert min(np.diff(search.smoothed[:30])) > min(np.diff(search.smoothed[35:]))
    assert search.suggestion in search.rates[:30]


def test_without_a_descent_or_enough_points_nothing_is_suggested(tmp_path):
    class Flat(Quadratic):
        def training_step(self, batch):
            return self.w.sum() * 0 + 1

    flat = tools.find_learning_rate(quiet(), Flat(), loader(), steps=12)
    few = tools.find_learning_rate(quiet(), Quadratic(), loader(), steps=9)
    assert (flat.suggestion, flat.reason) == (None, FLAT)
    assert (few.suggestion, few.reason) == (None, "9 losses were measured, and 10 are needed")
    assert str(few) == f"no learning rate is suggested for Quadratic: {few.reason}"
    few.plot(tmp_path / "few.png")


def test_a_skipped_step_has_no_loss():
    class Skips(Quadratic):
        def training_step(self, batch):
            return None if self.trainer.global_step % 3 == 1 else super().training_step(batch)

    search = tools.find_learning_rate(quiet(), Skips(), loader(), lowest=1e-3, steps=30)
    rates = np.geomspace(1e-3, 1, 30)
    assert search.rates == pytest.approx([r for i, r in enumerate(rates) if i % 3 != 1])


# -- mistakes ------------------------------------------------------------------------------------


def test_wrong_arguments_are_reported_at_once():
    with pytest.raises(PacelineError) as caught:
        tools.find_learning_rate(
            quiet(), Quadratic(), loader(), lowest=0, highest="1", steps=0, mode="linaer", stop_factor=1.0
        )
    text = str(caught.value)
    assert "find_learning_rate: 5 invalid arguments" in text
    for part in ("lowest: got 0", "highest: got '1'", "steps: got 0", "'linear'?", "stop_factor: got 1.0"):
        assert part in text
    with pytest.raises(PacelineError, match="a lowest below highest"):
        tools.find_learning_rate(quiet(), Quadratic(), loader(), lowest=0.1, highest=0.1)


def test_what_cannot_be_searched_is_refused():
    class Manual(Quadratic):
        automatic_optimization = False

    with pytest.raises(PacelineError, match="under manual optimization"):
        tools.find_learning_rate(quiet(), Manual(), loader())
    with pytest.raises(PacelineError, match="no trainable parameter"):
        tools.find_learning_rate(quiet(), Quadratic().requires_grad_(False), loader())
    with pytest.raises(PacelineError, match="find_learning_rate takes a TrainModule"):
        tools.find_learning_rate(quiet(), nn.Linear(2, 2), loader())
    with pytest.raises(PacelineError, match="no training data"):
        tools.find_learning_rate(quiet(), Quadratic())


def test_a_search_inside_a_run_is_refused():
    class Inside(Callback):
        def on_step_end(self, trainer):
            tools.find_learning_rate(trainer, Quadratic(), loader())

    with pytest.raises(PacelineError, match="was called inside fit"):
        quiet(callbacks=Inside()).fit(Quadratic(), loader())


# -- beside the user's runs ----------------------------------------------------------------------


def test_a_search_is_not_counted_among_the_fits_of_a_script(tmp_path):
    def number_of(run):
        return json.loads((run.folder / "env.json").read_text())["fit"]

    trainer = quiet(max_steps=1, run_dir=tmp_path)
    first = number_of(trainer.fit(Quadratic(), loader()))
    tools.find_learning_rate(trainer, Quadratic(), loader(), steps=3)
    assert number_of(trainer.fit(Quadratic(), loader())) == first + 1


def test_a_script_that_is_replayed_finds_the_same(monkeypatch):
    expected = tools.find_learning_rate(quiet(), Quadratic(), loader(), steps=20)
    monkeypatch.setenv("PACELINE_REPLAY", json.dumps({"run": "runs/x/1", "step": 1}))
    trainer = ReplayTrainer(precision="64", progress=False)
    assert tools.find_learning_rate(trainer, Quadratic(), loader(), steps=20) == expected


def test_a_strategy_object_keeps_its_settings():
    from paceline.strategies import Single

    strategy = Single()
    trainer = quiet(strategy=strategy)
    tools.find_learning_rate(trainer, Quadratic(), loader(), steps=3)
    assert strategy.settings.skip_nonfinite
    assert trainer.strategy is strategy


def test_the_curve_is_drawn(tmp_path):
    tools.find_learning_rate(quiet(), Quadratic(), loader(), steps=20).plot(tmp_path / "new" / "curve.png")
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")


# -- on ranks ------------------------------------------------------------------------------------


def test_all_ranks_find_the_same_as_one_device(tmp_path):
    run_ranks(JOB, 2, tmp_path, "ddp", "fsdp", folder=tmp_path)
    alone = tools.find_learning_rate(
        quiet(global_batch_size=8), Quadratic(), loader(shuffle=True), lowest=0.01, highest=40.0, steps=40
    )
    assert alone.diverged_at is not None
    for case in ("ddp", "fsdp"):
        ranks = [json.loads((tmp_path / f"{case}-{rank}.json").read_text()) for rank in range(2)]
        assert ranks[0] == ranks[1]
        assert ranks[0]["untouched"]
        rates, losses, smoothed, suggestion, diverged_at = ranks[0]["found"]
        assert rates == list(alone.rates)
        assert losses == pytest.approx(alone.losses, rel=1e-9)
        assert smoothed == pytest.approx(alone.smoothed, rel=1e-9)
        assert (suggestion, diverged_at) == (alone.suggestion, alone.diverged_at)
        assert ranks[0]["steps"] == len(losses) < 40  # none after the loss diverged
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("schedule", ["linear", "wsd", "constant"])
def test_schedules_of_ours_are_left_out_whatever_length_they_need(schedule):
    class Scheduled(Quadratic):
        def configure_optimizers(self):
            return {"optimizer": super().configure_optimizers(), "lr_scheduler": schedule}

    plain = tools.find_learning_rate(quiet(), Quadratic(), loader(), steps=12)
    assert tools.find_learning_rate(quiet(), Scheduled(), loader(), steps=12).losses == plain.losses
