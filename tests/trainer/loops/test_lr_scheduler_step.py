"""``lr_scheduler_step``: a module that steps its schedules itself, at the moments the loop has for them."""

import pytest
import torch
from helpers.small_net import Net, data
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from paceline import PacelineError, Trainer


class Halved:
    """No scheduler of torch: its ``step`` takes the epoch; the rate is 2 ** -(20 + that epoch)."""

    def __init__(self, optimizer):
        self.optimizer, self.calls = optimizer, []

    def step(self, epoch):
        self.calls.append(epoch)
        self.optimizer.param_groups[0]["lr"] = 2.0 ** -(20 + epoch)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class StepsItself(Net):
    interval = "epoch"

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-6)
        schedule = {"scheduler": Halved(optimizer), "interval": self.interval}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def lr_scheduler_step(self, scheduler, metric):
        assert metric is None
        scheduler.step(epoch=self.epoch + 1 if self.interval == "epoch" else self.global_step + 1)


def fit(module, resume=None, **settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None}
    trainer = Trainer(**(usual | settings))
    trainer.fit(module, data(), data(), resume=resume)
    return trainer


def test_each_epoch_it_is_called_in_the_place_of_step():
    trainer = fit(StepsItself(), max_epochs=3)
    assert trainer.lr_schedulers[0].calls == [1, 2, 3]
    assert trainer.optimizers[0].param_groups[0]["lr"] == 2.0**-23


def test_each_step_too():
    module = StepsItself()
    module.interval = "step"
    assert fit(module, max_epochs=1).lr_schedulers[0].calls == [1, 2, 3]


def test_it_gets_the_value_that_is_watched_and_super_is_the_usual_step():
    class Watches(Net):
        def __init__(self):
            super().__init__()
            self.values = []

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
            plateau = ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val/loss"}

        def lr_scheduler_step(self, scheduler, metric):
            self.values.append(metric)
            super().lr_scheduler_step(scheduler, metric)

    module = Watches()
    trainer = fit(module, max_epochs=3)
    assert module.values == [trainer.metrics["val/loss"]] * 3
    assert trainer.lr_schedulers[0].num_bad_epochs == 0
    assert trainer.lr_schedulers[0].last_epoch == 3


def test_frequency_still_counts():
    class EveryOther(StepsItself):
        def configure_optimizers(self):
            configured = super().configure_optimizers()
            configured["lr_scheduler"]["frequency"] = 2
            return configured

    assert fit(EveryOther(), max_epochs=5).lr_schedulers[0].calls == [2, 4]


def test_a_resumed_run_continues_with_the_same_rates(tmp_path):
    kept = {"run_dir": tmp_path, "name": "n"}
    fit(StepsItself(), max_epochs=2, **kept)
    trainer = fit(StepsItself(), resume="latest", max_epochs=4, **kept)
    assert trainer.lr_schedulers[0].calls == [1, 2, 3, 4]
    assert trainer.optimizers[0].param_groups[0]["lr"] == 2.0**-24


@pytest.mark.parametrize("skipped", [False, True])
def test_an_epoch_may_be_left_out(skipped):
    class Leaves(Net):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=2.0**-20)
            return optimizer, LambdaLR(optimizer, lambda epoch: 0.5**epoch)

        def lr_scheduler_step(self, scheduler, metric):
            if not (skipped and self.epoch == 0):
                super().lr_scheduler_step(scheduler, metric)

    rate = fit(Leaves(), max_epochs=2).optimizers[0].param_groups[0]["lr"]
    assert rate == 2.0**-20 * (0.5 if skipped else 0.25)


def test_it_may_take_the_scheduler_alone_and_more_is_refused_before_training():
    class Short(StepsItself):
        def lr_scheduler_step(self, scheduler):
            scheduler.step(self.epoch + 1)

    assert fit(Short(), max_epochs=2).lr_schedulers[0].calls == [1, 2]

    class Old(StepsItself):
        def lr_scheduler_step(self, scheduler, optimizer_idx, metric):
            raise AssertionError

    with pytest.raises(PacelineError, match=r"Old\.lr_scheduler_step asks for more arguments"):
        fit(Old(), max_epochs=1)
