"""The loss scale moves as torch's GradScaler moves it, and reads what that one has saved."""

import random

import pytest
import torch
from helpers.trainers import quiet
from torch import nn

from paceline import PacelineError, TrainModule
from paceline.strategies.dtypes.loss_scale import LossScale
from paceline.strategies.dtypes.precision import AutocastFP16

SETTINGS = {"init_scale": 2.0**10, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 3}


def scaler_and_optimizer():
    scaler = torch.amp.GradScaler("cpu", **SETTINGS)
    return scaler, torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)


def take(scaler, optimizer, overflows):
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = torch.full((2,), float("inf") if overflows else 1.0)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    scaler.update()


def test_it_moves_as_torch_s_grad_scaler_does():
    draw = random.Random(3)
    scaler, optimizer = scaler_and_optimizer()
    ours = LossScale(**SETTINGS)
    values = set()
    for _ in range(60):
        overflows = draw.random() < 0.2
        take(scaler, optimizer, overflows)
        ours.update(overflows)
        assert ours.value == scaler.get_scale()
        values.add(ours.value)
    assert len(values) > 5


def test_it_does_not_grow_beyond_what_float32_holds():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=1)
    _, optimizer = scaler_and_optimizer()
    ours = LossScale(init_scale=2.0**126, growth_interval=1)
    for _ in range(4):
        take(scaler, optimizer, False)
        ours.update(False)
    assert ours.value == scaler.get_scale() == 2.0**127


def test_it_reads_the_state_of_a_grad_scaler_and_continues_as_that_one():
    scaler, optimizer = scaler_and_optimizer()
    for overflows in (True, False, False):
        take(scaler, optimizer, overflows)
    ours = LossScale(**SETTINGS)
    ours.load_state_dict(scaler.state_dict())
    take(scaler, optimizer, False)  # the third finite one in a row
    ours.update(False)
    assert ours.value == scaler.get_scale() == 2.0**8 * 3
    again = LossScale(**SETTINGS)
    again.load_state_dict(ours.state_dict())
    assert again.state_dict() == ours.state_dict()


def test_skipped_updates_are_counted_until_the_next_finite_one():
    scale = LossScale()
    for overflowed, expected in ((True, 1), (True, 2), (False, 0), (True, 1)):
        scale.update(overflowed)
        assert scale.skipped_in_a_row == expected
    again = LossScale()
    again.load_state_dict(scale.state_dict())
    assert again.skipped_in_a_row == 1


def test_all_wrong_arguments_are_reported_together():
    with pytest.raises(PacelineError) as caught:
        AutocastFP16(init_scale=0.0, growth_factor=1.0, backoff_factor=1.0, growth_interval=0)
    for name in ("init_scale", "growth_factor", "backoff_factor", "growth_interval"):
        assert name in str(caught.value)
    with pytest.raises(PacelineError, match="max_consecutive_skips"):
        AutocastFP16(max_consecutive_skips=0)


def overflowed(precision):
    """An optimizer of which ``precision`` has seen an infinite gradient."""
    precision.attach(torch.device("cpu"))
    (parameter,) = parameters = [nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    parameter.grad = torch.full((2,), float("inf"))
    precision.unscale(optimizer)
    return optimizer, parameter


def test_the_second_step_of_an_optimizer_has_the_scale_that_its_first_one_left():
    """As under manual optimization, where ``update`` comes once, after both."""
    precision = AutocastFP16(init_scale=8.0)
    optimizer, parameter = overflowed(precision)
    assert not precision.step(optimizer)
    parameter.grad = torch.full((2,), 8.0)
    precision.unscale(optimizer)
    assert precision.loss_scale == 4.0
    assert parameter.grad.tolist() == [2.0, 2.0]
    assert precision.step(optimizer)
    precision.update()
    assert precision.skipped_in_a_row == 0


def test_an_overflow_counts_where_a_hook_wants_no_update_too():
    precision = AutocastFP16(init_scale=8.0)
    precision.skip(overflowed(precision)[0])
    assert (precision.loss_scale, precision.skipped_in_a_row) == (4.0, 1)


def test_sparse_and_complex_gradients_are_divided_and_looked_at():
    precision = AutocastFP16(init_scale=8.0)
    precision.attach(torch.device("cpu"))
    table, turn = nn.Embedding(4, 2, sparse=True), nn.Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer = torch.optim.SGD([table.weight, turn], lr=0.1)
    (8.0 * (table(torch.tensor([1, 1])).sum() + (turn * 2j).real.sum() + turn.real.sum())).backward()
    precision.unscale(optimizer)
    assert table.weight.grad.to_dense()[1].tolist() == [2.0, 2.0]
    assert turn.grad[0].real.item() == 1.0
    assert [flag.item() for flag in precision.overflows(optimizer)] == [0.0]
    turn.grad[1] = complex(0, float("nan"))
    precision.unscale(optimizer)
    assert [flag.item() > 0 for flag in precision.overflows(optimizer)] == [True]


class Manual(TrainModule):
    """In every second step the gradient is infinite, or in all from the third on."""

    def __init__(self, all_from=1000):
        super().__init__()
        self.automatic_optimization = False
        self.layer, self.all_from = nn.Linear(2, 1), all_from

    def training_step(self, batch):
        out, step = self.layer(batch), self.global_step + 1
        if step % 2 == 0 or step >= self.all_from:
            out.register_hook(lambda gradient: gradient * float("inf"))
        self.manual_backward(out.mean())
        self.optimizers().step()
        self.optimizers().zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_manually(module, **settings):
    trainer = quiet(precision=AutocastFP16(init_scale=2.0**10, **settings), run_dir=None)
    trainer.fit(module, [torch.ones(4, 2)] * 8)
    return trainer


def test_under_manual_optimization_skipped_updates_are_counted_too(capsys):
    trainer = fit_manually(Manual())
    assert (trainer.global_step, trainer.counters.skipped_steps) == (8, 4)
    assert capsys.readouterr().out.count("gradients overflowed in float16") == 4
    with pytest.raises(PacelineError, match="3 updates in a row were skipped"):
        fit_manually(Manual(all_from=5), max_consecutive_skips=3)


def test_a_loss_in_float16_is_scaled_in_float32():
    precision = AutocastFP16(init_scale=2.0**16)
    precision.attach(torch.device("cpu"))
    scaled = precision.scale(torch.tensor(3.0, dtype=torch.float16))
    assert scaled.item() == 3 * 2.0**16
