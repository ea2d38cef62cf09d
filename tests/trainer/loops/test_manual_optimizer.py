"""Manual optimization: several optimizers, stepped by the module itself."""

import pytest
import torch
from helpers.trainers import fitted, quiet
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule, seed_everything
from paceline.callbacks import Callback


def real_data(samples=20):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(samples, 2, generator=generator) * 0.5 + 1


def loader(batch_size=6):
    return DataLoader(TensorDataset(real_data()), batch_size=batch_size)


class GAN(TrainModule):
    """A generator and a critic, each with an optimizer and a schedule of its own."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
        self.critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(), nn.Linear(8, 1))

    def configure_optimizers(self):
        return build(self.generator, self.critic)

    def critic_loss(self, real):
        fake = self.generator(torch.randn(len(real), 3)).detach()
        return F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake)).mean()

    def generator_loss(self, real):
        return F.softplus(-self.critic(self.generator(torch.randn(len(real), 3)))).mean()

    def training_step(self, batch, batch_idx):
        (real,) = batch
        generator_opt, critic_opt = self.optimizers()
        loss = self.critic_loss(real)
        critic_opt.zero_grad()
        self.manual_backward(loss)
        critic_opt.step()
        if batch_idx % 2 == 0:
            generator_opt.zero_grad()
            self.manual_backward(self.generator_loss(real))
            generator_opt.step()
        for schedule in self.lr_schedulers():
            schedule.step()
        self.log("critic", loss)


def build(generator, critic):
    optimizers = [
        torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.9)),
        torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9),
    ]
    schedules = [
        torch.optim.lr_scheduler.StepLR(optimizers[0], 2, gamma=0.5),
        torch.optim.lr_scheduler.ExponentialLR(optimizers[1], 0.9),
    ]
    return optimizers, schedules


def by_hand(epochs, clip=None, clip_value=None):
    """The same training as a loop somebody would have written."""
    module = GAN()
    generator, critic = module.generator, module.critic
    (generator_opt, critic_opt), schedules = build(generator, critic)

    def update(optimizer, part):
        if clip is not None:
            nn.utils.clip_grad_norm_(part.parameters(), clip)
        if clip_value is not None:
            nn.utils.clip_grad_value_(part.parameters(), clip_value)
        optimizer.step()

    seed_everything(0)
    for _ in range(epochs):
        for index, real in enumerate(real_data().split(6)):
            critic_opt.zero_grad()
            module.critic_loss(real).backward()
            update(critic_opt, critic)
            if index % 2 == 0:
                generator_opt.zero_grad()
                module.generator_loss(real).backward()
                update(generator_opt, generator)
            for schedule in schedules:
                schedule.step()
    return module


def same(first, second):
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_gan_equals_the_hand_written_loop_bit_for_bit():
    module, trainer = GAN(), quiet(max_epochs=3)
    trainer.fit(module, loader())
    assert same(module, by_hand(3))
    assert not same(module, GAN())


def test_global_step_counts_training_steps_however_many_optimizers():
    trainer = fitted(GAN(), loader(), max_epochs=3)
    assert trainer.global_step == trainer.total_steps == 3 * 4
    limited = fitted(GAN(), loader(), max_steps=5)
    assert (limited.global_step, limited.stop_reason) == (5, "max_steps=5 reached")


@pytest.mark.parametrize(
    ("settings", "hand"),
    [({"clip_grad_norm": 0.05}, {"clip": 0.05}), ({"clip_grad_value": 0.02}, {"clip_value": 0.02})],
)
def test_each_optimizer_is_clipped_by_itself(settings, hand):
    module = GAN()
    quiet(max_epochs=2, **settings).fit(module, loader())
    assert same(module, by_hand(2, **hand))
    assert not same(module, by_hand(2))


def test_rates_and_values_are_logged_by_name():
    module, trainer = GAN(), quiet(max_epochs=1)
    trainer.fit(module, loader())
    assert trainer.metrics["lr/Adam-0"] == pytest.approx(1e-2 * 0.5)  # of the third step, its last
    assert trainer.metrics["lr/SGD-1"] == pytest.approx(0.1 * 0.9**3)
    assert trainer.metrics["train/critic_epoch"] > 0


def test_before_optimizer_step_is_called_inside_each_step_with_its_optimizer():
    seen = []

    class Look(Callback):
        def on_before_optimizer_step(self, trainer, optimizer):
            norm = nn.utils.get_total_norm([p.grad for p in optimizer.param_groups[0]["params"]])
            seen.append((type(optimizer).__name__, norm.item() > 1e-4))

        def on_step_end(self, trainer):
            seen.append("end")

    quiet(max_steps=2, callbacks=Look(), clip_grad_norm=1e-4).fit(GAN(), loader())
    assert seen == [("SGD", True), ("Adam", True), "end", ("SGD", True), "end"]


def test_accumulate_is_refused():
    with pytest.raises(PacelineError, match="accumulate is not possible with manual optimization"):
        quiet(accumulate=2).fit(GAN(), loader())


def test_one_optimizer_and_schedule_come_without_a_list():
    class One(TrainModule):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 1)
            self.seen = []

        def training_step(self, batch):
            optimizer, schedule = self.optimizers(), self.lr_schedulers()
            loss = self.net(batch[0]).pow(2).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.seen.append((optimizer.param_groups[0]["lr"], schedule.get_last_lr()))
            schedule.step()
            return loss.detach()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    module, trainer = One(), quiet(max_steps=3)
    trainer.fit(module, loader())
    assert module.seen == [(1.0, [1.0]), (0.5, [0.5]), (0.25, [0.25])]
    assert trainer.metrics["train/loss"] > 0  # what a step returns is logged


def test_no_schedule_is_none_and_several_optimizers_are_a_list():
    seen = []

    class Two(GAN):
        def configure_optimizers(self):
            return build(self.generator, self.critic)[0]

        def training_step(self, batch):
            seen.append((self.lr_schedulers(), [type(o.optimizer).__name__ for o in self.optimizers()]))

    module, trainer = Two(), quiet(max_steps=1)
    trainer.fit(module, loader())
    assert seen == [(None, ["Adam", "SGD"])]
    assert same(module, GAN())  # a step that updates nothing is allowed
    assert trainer.global_step == 1


def test_an_optimizer_with_a_closure():
    class Newton(TrainModule):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor([3.0, -2.0]))

        def training_step(self, batch):
            optimizer = self.optimizers()

            def closure():
                optimizer.zero_grad()
                loss = (self.x - 1).pow(2).sum()
                self.manual_backward(loss)
                return loss

            optimizer.step(closure)

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=1.0)

    module = Newton()
    quiet(max_steps=3).fit(module, loader())
    torch.testing.assert_close(module.x.detach(), torch.ones(2), rtol=1e-4, atol=1e-4)


def test_schedules_and_optimizers_survive_a_resume(tmp_path):
    def trainer(epochs):
        return Trainer(max_epochs=epochs, progress=False, loggers=False, run_dir=tmp_path)

    trainer(1).fit(GAN(), loader())
    module = GAN()
    resumed = trainer(3)
    resumed.fit(module, loader(), resume="latest")
    assert resumed.global_step == 12
    assert same(module, by_hand(3))


class SAM(torch.optim.Optimizer):
    """Updates in two further methods, of which the second steps another optimizer."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.5)

    @torch.no_grad()
    def first_step(self):
        held = self.param_groups[0]["params"]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        self.before = [p.clone() for p in held]
        for p in held:
            p += p.grad / norm
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p, before in zip(self.param_groups[0]["params"], self.before, strict=True):
            p.copy_(before)
        self.base.step()
        self.zero_grad()

    def report(self):
        """Neither reads gradients nor changes weights."""
        return "report"


class Sharpness(TrainModule):
    """Trains with ``SAM``; ``spoiled`` makes the loss of its second backward infinite."""

    automatic_optimization = False

    def __init__(self, spoiled=False):
        super().__init__()
        torch.manual_seed(7)
        self.layer = nn.Linear(2, 1)
        self.seen = []

    def loss(self, batch):
        return self.layer(batch[0]).exp().mean()

    def training_step(self, batch):
        optimizer = self.optimizers()
        assert optimizer.report() == "report"
        self.seen.append(len(self.seen))
        self.manual_backward(self.loss(batch))
        optimizer.first_step()
        self.kept = [p.detach().clone() for p in self.parameters()]
        self.manual_backward(self.loss(batch) * (float("inf") if self.hparams["spoiled"] else 1.0))
        optimizer.second_step()

    def configure_optimizers(self):
        return SAM(self.parameters())


def test_a_method_of_an_optimizer_that_changes_weights_is_an_update(tmp_path, capsys):
    calls = []

    class Look(Callback):
        def on_before_optimizer_step(self, trainer, optimizer):
            calls.append(type(optimizer).__name__)

    module = Sharpness()
    trainer = Trainer(
        max_epochs=1,
        clip_grad_norm=0.1,
        callbacks=Look(),
        progress=False,
        checkpoint=False,
        run_dir=tmp_path,
    )
    trainer.fit(module, loader())
    assert calls == ["SAM", "SAM"] * trainer.global_step
    assert "no weight was updated" not in capsys.readouterr().out
    hand = Sharpness()
    sam = SAM(hand.parameters())
    for real in real_data().split(6):
        for update in (sam.first_step, sam.second_step):
            hand.loss([real]).backward()
            nn.utils.clip_grad_norm_(hand.parameters(), 0.1)
            update()
    assert same(module, hand)
    assert not same(module, Sharpness())


def test_such_a_method_is_held_back_where_a_loss_is_not_finite():
    module = Sharpness(spoiled=True)
    with pytest.raises(PacelineError, match="the loss is inf; nothing was updated"):
        quiet(max_steps=1).fit(module, loader())
    assert all(map(torch.equal, module.parameters(), module.kept))


def test_such_a_method_is_refused_where_gradients_are_scaled():
    expected = 'SAM.first_step.. may change weights.*\n.*\n  fix: precision="bf16" or "32"'
    with pytest.raises(PacelineError, match=expected):
        quiet(max_steps=1, precision="fp16").fit(Sharpness(), loader())


def test_forgetting_to_step_is_reported(tmp_path, capsys):
    class Forgetful(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch):
            self.manual_backward(self.layer(batch).mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    Trainer(accelerator="cpu", progress=False, run_dir=tmp_path).fit(Forgetful(), [torch.randn(4, 2)])
    assert "no weight was updated" in capsys.readouterr().out
