"""A module's own ``backward`` and ``optimizer_step``, and validations that a callback asks for."""

import math

import pytest
import torch
from helpers.small_net import Net, data

from paceline import PacelineError, Trainer
from paceline.callbacks import Callback


def weights_after(module, **options):
    settings = {"max_epochs": 2, "progress": False, "run_dir": None, "accumulate": 2}
    Trainer(**settings | options).fit(module, data())
    return [p.detach().clone() for p in module.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Calls(Net):
    """Both points overridden, in effect as they are."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def training_step(self, batch):
        self.calls.append("forward")
        return super().training_step(batch)

    def backward(self, loss):
        self.calls.append("backward")
        super().backward(loss)

    def on_before_optimizer_step(self, trainer, optimizer):
        self.calls.append("gradients")

    def optimizer_step(self, optimizer, closure):
        self.calls.append("update")
        super().optimizer_step(optimizer, closure)
        self.calls.append("updated")


def test_overrides_are_called_in_their_places_and_change_nothing():
    module = Calls()
    found = weights_after(module, clip_grad_norm=0.5)
    first = ["forward", "backward", "update", "forward", "backward", "gradients", "updated"]
    assert module.calls[:7] == first
    assert same(found, weights_after(Net(), clip_grad_norm=0.5))


def test_backward_may_scale_the_loss():
    class Twice(Net):
        def backward(self, loss):
            super().backward(2 * loss)

    class TwiceTheLoss(Net):
        def training_step(self, batch):
            return 2 * super().training_step(batch)

    assert same(weights_after(Twice()), weights_after(TwiceTheLoss()))


def test_a_step_without_an_update_leaves_the_weights():
    class Never(Net):
        def optimizer_step(self, optimizer, closure):
            assert closure().requires_grad

    assert same(weights_after(Never()), [*Net().parameters()])


class Halved(torch.optim.SGD):
    """Has an update of its own: a step of half the length."""

    @torch.no_grad()
    def half_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p -= 0.5 * group["lr"] * p.grad


class ByHalves(Net):
    """Updates with a method that torch's optimizers do not have, and a schedule."""

    def configure_optimizers(self):
        halved = Halved(self.parameters(), lr=2e-3)
        rate = torch.optim.lr_scheduler.ExponentialLR(halved, 0.5)
        return {"optimizer": halved, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def optimizer_step(self, optimizer, closure):
        closure()
        optimizer.half_step()


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # torch sees calls of step alone
def test_a_method_of_the_optimizers_class_is_an_update():
    class AtOnce(ByHalves):
        def configure_optimizers(self):
            found = super().configure_optimizers()
            found["optimizer"].param_groups[0]["lr"] = 1e-3
            found["lr_scheduler"]["scheduler"].base_lrs[0] = 1e-3
            return found

        def optimizer_step(self, optimizer, closure):
            optimizer.step(closure)

    found, expected = weights_after(ByHalves()), weights_after(AtOnce())
    assert not same(found, [*Net().parameters()])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_such_a_method_is_refused_where_gradients_are_scaled():
    with pytest.raises(PacelineError, match=r"Halved.half_step.. may change weights.*scaled"):
        weights_after(ByHalves(), precision="fp16")


def test_gradients_that_are_not_finite_update_nothing():
    class OneBad(Net):
        def training_step(self, batch):
            loss = super().training_step(batch)
            return loss * math.nan if self.global_step == 1 else loss

        def optimizer_step(self, optimizer, closure):
            before = self.net.weight.detach().clone()
            optimizer.step(closure)
            changed.append(not torch.equal(before, self.net.weight))

    changed = []
    weights_after(OneBad(), nonfinite="skip", accumulate=1)
    assert changed == [True, False, True, True, True, True]


@pytest.mark.parametrize(
    ("times", "message"), [(0, "did not call its closure"), (2, "called its closure twice")]
)
def test_the_closure_is_called_once(times, message):
    class Wrong(Net):
        def optimizer_step(self, optimizer, closure):
            for _ in range(times):
                closure()

    with pytest.raises(PacelineError, match=message):
        weights_after(Wrong())


class At(Callback):
    requests_validation = True

    def __init__(self, *steps):
        self.steps, self.validated = steps, []

    def on_step_end(self, trainer):
        if trainer.global_step in self.steps:
            trainer.loop.request_validation()

    def on_validation_end(self, trainer):
        self.validated.append(trainer.global_step)


@pytest.mark.parametrize(
    ("every", "expected"), [(None, [2, 3, 5]), ("1ep", [2, 3, 5, 6]), (1, [1, 2, 3, 4, 5, 6])]
)
def test_a_callback_asks_for_validations(every, expected):
    at = At(2, 3, 5)
    options = {"validate_every": every, "sanity_val_batches": 0, "callbacks": at}
    Trainer(max_epochs=2, progress=False, run_dir=None, **options).fit(Net(), data(), data())
    assert at.validated == expected


def test_what_is_monitored_may_wait_for_a_request():
    from paceline.callbacks import EarlyStopping

    options = {"validate_every": None, "progress": False, "run_dir": None, "max_epochs": 3}
    stops = EarlyStopping("val/loss", patience=1, min_delta=1e9)
    with pytest.raises(PacelineError, match="this run has no validation"):
        Trainer(callbacks=stops, **options).fit(Net(), data(), data())
    trainer = Trainer(callbacks=[At(1, 3), stops], **options)
    trainer.fit(Net(), data(), data())
    assert trainer.global_step == 3
