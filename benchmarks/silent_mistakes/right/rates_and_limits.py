"""Learning rates that rise from 0 or fall to it, averages, clipping, and runs that are cut short."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import EMA, SWA, Checkpoint, EarlyStopping, Freeze
from paceline.parameter_groups import decay_groups
from paceline.schedules import WSD

from ..programs import right
from ..tasks_text import table


class Plan(TrainModule):
    """A value of a row; a subclass has the plan of the rate."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).flatten()

    def training_step(self, batch):
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("loss", F.mse_loss(self(batch[0]), batch[1]))

    def plan(self, optimizer):
        return None

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(decay_groups(self, weight_decay=0.01), lr=0.01)
        return {
            "optimizer": optimizer,
            **({"lr_scheduler": plan} if (plan := self.plan(optimizer)) else {}),
        }


def loaders():
    x, y = table(768)
    train, val = TensorDataset(x[:640], y[:640]), TensorDataset(x[640:], y[640:])
    return DataLoader(train, 32, shuffle=True), DataLoader(val, 128)


@right(area="table")
def one_cycle_counted_in_steps(trainer):
    """The rate begins at a 25th of its peak and ends near 0; the plan steps with each step."""

    class OneCycle(Plan):
        def plan(self, optimizer):
            plan = OneCycleLR(optimizer, max_lr=0.02, total_steps=self.trainer.total_steps)
            return {"scheduler": plan, "interval": "step"}

    trainer(max_epochs=4).fit(OneCycle(), *loaders())


@right(area="table")
def warm_up_from_nothing_then_a_cosine(trainer):
    """The rate of the very first step is 0, as in transformers, and that of the last nearly so."""

    class Warm(Plan):
        def plan(self, optimizer):
            total, warm = self.trainer.total_steps, 10

            def factor(step):
                if step < warm:
                    return step / warm
                return 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))

            return {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}

    trainer(max_epochs=4).fit(Warm(), *loaders())


@right(area="table")
def warm_up_of_an_epoch_then_steps_down(trainer):
    """Counted in epochs: one at a tenth of the rate, then the rate, then a tenth of it again."""

    class Chained(Plan):
        def plan(self, optimizer):
            warm = LinearLR(optimizer, start_factor=0.1, total_iters=1)
            return SequentialLR(optimizer, [warm, MultiStepLR(optimizer, [3, 5])], milestones=[1])

    trainer(max_epochs=7).fit(Chained(), *loaders())


@right(area="table")
def plateau_of_a_loss_that_falls(trainer):
    """ReduceLROnPlateau watches the validation loss, and in a short run it never has to act."""

    class Watched(Plan):
        def plan(self, optimizer):
            return {"scheduler": ReduceLROnPlateau(optimizer, patience=3), "monitor": "val/loss"}

    trainer(max_epochs=4).fit(Watched(), *loaders())


@right(area="table")
def plateau_of_a_score_that_rises(trainer):
    """The score of which the best is the greatest: all three that watch it have mode="max"."""

    class Scored(Plan):
        def validation_step(self, batch):
            error = F.mse_loss(self(batch[0]), batch[1])
            self.log("r2", 1 - error / batch[1].var(correction=0))

        def plan(self, optimizer):
            plan = ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=1)
            return {"scheduler": plan, "monitor": "val/r2"}

    watching = [
        Checkpoint(monitor="val/r2", mode="max", keep=1),
        EarlyStopping("val/r2", mode="max", patience=4),
    ]
    trainer(max_epochs=6, callbacks=watching).fit(Scored(), *loaders())


@right(area="table")
def cosine_with_restarts_in_fractions_of_an_epoch(trainer):
    """The rate jumps up at each restart, in the middle of the run."""

    class Restarts(Plan):
        def plan(self, optimizer):
            return {"scheduler": CosineAnnealingWarmRestarts(optimizer, 20, 2), "interval": "step"}

    trainer(max_epochs=3).fit(Restarts(), *loaders())


@right(area="table")
def plan_of_a_run_that_was_stopped_early(trainer):
    """A plan for 25 epochs that early stopping ends sooner, so that the rate never decays."""

    class Long(Plan):
        def plan(self, optimizer):
            return WSD(warmup="5%", decay="20%")

    stop = EarlyStopping("val/loss", patience=2)
    trainer(max_epochs=25, callbacks=[stop]).fit(Long(), *loaders())


@right(area="table")
def average_that_is_validated(trainer):
    """An EMA with a warm-up: what is validated are other weights than those that a step changes."""
    trainer(max_epochs=4, callbacks=[EMA(decay=0.98, warmup=True)]).fit(Plan(), *loaders())


@right(area="table")
def average_of_the_last_epochs(trainer):
    """SWA at a constant rate from the middle on; it is used when the run is over."""

    class Constant(Plan):
        def plan(self, optimizer):
            return MultiStepLR(optimizer, [2], gamma=0.5)

    module, data = Constant(), loaders()
    run = trainer(max_epochs=5, callbacks=[SWA(start="2ep")])
    run.fit(module, *data)
    run.validate(module, data[1])


@right(area="table")
def average_kept_by_the_module(trainer):
    """An AveragedModel of torch, updated after each step, and the one that is validated."""

    class Averaged(Plan):
        def __init__(self):
            super().__init__()
            self.average = AveragedModel(
                self.net, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True
            )
            self.average.requires_grad_(False)

        def on_step_end(self, trainer, outputs):
            self.average.update_parameters(self.net)

        def validation_step(self, batch):
            self.log("loss", F.mse_loss(self.average(batch[0]).flatten(), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    trainer(max_epochs=4).fit(Averaged(), *loaders())


@right(area="table")
def clipping_that_acts_at_the_beginning(trainer):
    """Early gradients are clipped by a small factor, later ones are not."""
    trainer(max_epochs=4, clip_grad_norm=4.0).fit(Plan(), *loaders())


@right(area="transfer")
def lower_layers_frozen_for_an_epoch(trainer):
    """The first layer and its norm are thawed after an epoch, at a tenth of the rate."""

    class Thawed(Plan):
        def configure_optimizers(self):
            lower, upper = self.net[:2].parameters(), self.net[2:].parameters()
            groups = [{"params": list(lower), "lr": 1e-3}, {"params": list(upper)}]
            optimizer = torch.optim.Adam(groups, lr=0.01)
            plan = CosineAnnealingLR(optimizer, self.trainer.max_epochs, eta_min=1e-4)
            return optimizer, plan

        def on_train_epoch_start(self):
            self.net[1].train(self.epoch > 0)  # its statistics stay as they are meanwhile

    first = Plan()
    trainer(max_epochs=2).fit(first, *loaders())
    second = Thawed()
    second.net[:2].load_state_dict(first.net[:2].state_dict())
    frozen = Freeze(["net.0.*", "net.1.*"], until="1ep")
    trainer(max_epochs=4, callbacks=[frozen]).fit(second, *loaders())


@right(area="table")
def the_same_two_batches_each_epoch(trainer):
    """overfit_batches: whether the model can learn two batches at all; it validates on them too."""
    trainer(max_epochs=10, overfit_batches=2).fit(Plan(), *loaders())


@right(area="table")
def a_tenth_of_the_batches(trainer):
    """limit_train_batches and limit_val_batches, to see whether a program runs."""
    limits = {"limit_train_batches": 0.1, "limit_val_batches": 1}
    trainer(max_epochs=3, **limits).fit(Plan(), *loaders())


@right(area="table")
def one_step_to_try_the_program(trainer):
    """fast_dev_run: a step and a validation batch, of which nothing can be said."""

    class Warm(Plan):
        def plan(self, optimizer):
            return {"scheduler": LinearLR(optimizer, 0.01, total_iters=100), "interval": "step"}

    run: Trainer = trainer(max_epochs=10, fast_dev_run=True)
    run.fit(Warm(), *loaders())


@right(area="table")
def accumulation_and_a_large_step(trainer):
    """Sixteen micro-batches of two rows are a step; the norm is over features, so that two rows suffice."""

    class Layered(Plan):
        def __init__(self):
            super().__init__()
            self.net[1] = nn.LayerNorm(32)

    train, val = loaders()
    small = DataLoader(train.dataset, 2, shuffle=True)
    trainer(max_steps=80, accumulate=16).fit(Layered(), small, val)
