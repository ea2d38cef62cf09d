"""Manual optimization and steps of one's own, as they are to be: policies, players, penalties."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule

from ..programs import right
from ..tasks_text import generator, table


class Manual(TrainModule):
    """A value of a row, by steps of its own."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def error(self, batch):
        return F.mse_loss(self.net(batch[0]).squeeze(1), batch[1])

    def validation_step(self, batch):
        self.log("loss", self.error(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def loaders(size=32):
    x, y = table(768)
    train, val = TensorDataset(x[:640], y[:640]), TensorDataset(x[640:], y[640:])
    return DataLoader(train, size, shuffle=True), DataLoader(val, 128)


@right(area="table")
def gradients_of_four_batches_added_up(trainer):
    """Manual accumulation: each loss is divided by four, gradients are cleared after each step."""

    class Accumulated(Manual):
        def training_step(self, batch, batch_idx):
            loss = self.error(batch)
            self.manual_backward(loss / 4)
            if (batch_idx + 1) % 4 == 0:
                self.optimizers().step()
                self.optimizers().zero_grad()
            return loss

    trainer(max_epochs=4).fit(Accumulated(), *loaders(16))


@right(area="table", source="https://arxiv.org/abs/2010.01412")
def two_backward_passes_for_a_step(trainer):
    """SAM: weights are moved up, the gradient is taken there, and they are moved back before the step."""

    class Sharpness(Manual):
        def training_step(self, batch):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = self.error(batch)
            self.manual_backward(loss)
            with torch.no_grad():
                weights = [p for p in self.parameters() if p.grad is not None]
                norm = torch.stack([p.grad.norm() for p in weights]).norm() + 1e-12
                moves = [0.05 * p.grad / norm for p in weights]
                for weight, move in zip(weights, moves, strict=True):
                    weight.add_(move)
            optimizer.zero_grad()
            self.manual_backward(self.error(batch))
            with torch.no_grad():
                for weight, move in zip(weights, moves, strict=True):
                    weight.sub_(move)
            optimizer.step()
            return loss

    trainer(max_epochs=3).fit(Sharpness(), *loaders())


@right(area="table")
def critic_trained_more_often_than_the_actor(trainer):
    """The critic steps for each batch, the actor every third one, by the gradient through the critic."""

    class ActorCritic(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.actor = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1), nn.Tanh())
            self.critic = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))

        def value(self, state, action):
            return self.critic(torch.cat([state, action], 1))[:, 0]

        def training_step(self, batch, batch_idx):
            state, action, reward = batch
            actor, critic = self.optimizers()
            error = F.mse_loss(self.value(state, action), reward)
            critic.zero_grad()
            self.manual_backward(error)
            critic.step()
            self.log("critic", error)
            if batch_idx % 3 == 0:
                self.toggle_optimizer(actor)
                value = self.value(state, self.actor(state)).mean()
                actor.zero_grad()
                self.manual_backward(-value)
                actor.step()
                self.untoggle_optimizer(actor)
                self.log("value", value)

        def validation_step(self, batch):
            best = torch.tanh(batch[0][:, :1])
            self.log("distance", (self.actor(batch[0]) - best).abs().mean())

        def configure_optimizers(self):
            parts = (self.actor, 3e-3), (self.critic, 5e-3)
            return [torch.optim.Adam(part.parameters(), lr=rate) for part, rate in parts]

    draws = generator(1)
    state, action = torch.randn(900, 4, generator=draws), torch.rand(900, 1, generator=draws) * 2 - 1
    reward = 1 - (action - torch.tanh(state[:, :1])).square()[:, 0]
    rows = state, action, reward
    train, val = (TensorDataset(*(one[part] for one in rows)) for part in (slice(800), slice(800, None)))
    trainer(max_epochs=6).fit(ActorCritic(), DataLoader(train, 32, shuffle=True), DataLoader(val, 100))


@right(area="series")
def policy_gradient_with_a_running_baseline(trainer):
    """REINFORCE on an armed bandit: the loss is negative at times, means little, and need not fall."""

    class Bandit(TrainModule):
        def __init__(self):
            super().__init__()
            self.policy = nn.Linear(3, 4)
            self.register_buffer("baseline", torch.zeros(()))

        def play(self, context, arm):
            return (arm == context.argmax(1)).float() + 0.1 * torch.randn(len(arm))

        def training_step(self, batch):
            (context,) = batch
            policy = torch.distributions.Categorical(logits=self.policy(context))
            arm = policy.sample()
            reward = self.play(context, arm)
            advantage = reward - self.baseline
            self.baseline.lerp_(reward.mean(), 0.1)
            self.log("reward", reward.mean())
            return -(policy.log_prob(arm) * advantage).mean() - 0.01 * policy.entropy().mean()

        def validation_step(self, batch):
            (context,) = batch
            self.log("reward", self.play(context, self.policy(context).argmax(1)).mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    train, val = (torch.randn(count, 3, generator=generator(count)) for count in (1600, 200))
    trainer(max_epochs=3).fit(
        Bandit(), DataLoader(TensorDataset(train), 32, shuffle=True), DataLoader(TensorDataset(val), 200)
    )


@right(area="series", source="https://arxiv.org/abs/1707.06347")
def clipped_policy_whose_loss_begins_at_zero(trainer):
    """PPO on normalised advantages: the first loss of an epoch is 0, though its gradient is not."""

    class Clipped(TrainModule):
        def __init__(self):
            super().__init__()
            self.policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))
            self.old = copy.deepcopy(self.policy).requires_grad_(False)

        def on_train_epoch_start(self):
            self.old.load_state_dict(self.policy.state_dict())

        def training_step(self, batch):
            (state,) = batch
            with torch.no_grad():
                before = torch.distributions.Categorical(logits=self.old(state))
                action = before.sample()
                reward = (action == state.argmax(1)).float()
                advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
            now = torch.distributions.Categorical(logits=self.policy(state))
            ratio = (now.log_prob(action) - before.log_prob(action)).exp()
            return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()

        def validation_step(self, batch):
            (state,) = batch
            self.log("reward", (self.policy(state).argmax(1) == state.argmax(1)).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.policy.parameters(), lr=0.02)

    train, val = (TensorDataset(torch.randn(n, 3, generator=generator(n))) for n in (960, 200))
    trainer(max_epochs=6).fit(Clipped(), DataLoader(train, 64, shuffle=True), DataLoader(val, 200))


@right(area="series", source="https://www.nature.com/articles/nature14236")
def target_network_that_follows_slowly(trainer):
    """Temporal differences: the target is a frozen copy's, which a step moves by a twentieth."""

    class Values(TrainModule):
        def __init__(self):
            super().__init__()
            self.value = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
            self.target = copy.deepcopy(self.value).requires_grad_(False)

        def training_step(self, batch):
            state, reward, following = batch
            with torch.no_grad():
                wanted = reward + 0.8 * self.target(following)[:, 0]
            return F.smooth_l1_loss(self.value(state)[:, 0], wanted)

        def on_step_end(self, trainer, outputs):
            pairs = zip(self.target.parameters(), self.value.parameters(), strict=True)
            for slow, fast in pairs:
                slow.data.lerp_(fast.data, 0.05)

        def validation_step(self, batch):
            state, reward, following = batch
            wanted = reward + 0.8 * self.target(following)[:, 0]
            return {"error": F.l1_loss(self.value(state)[:, 0], wanted)}

        def configure_optimizers(self):
            return torch.optim.Adam(self.value.parameters(), lr=5e-3)

    state = torch.randn(900, 2, generator=generator(3))
    rows = state, state.prod(1), 0.9 * state
    train, val = (TensorDataset(*(one[part] for one in rows)) for part in (slice(800), slice(800, None)))
    trainer(max_epochs=5).fit(Values(), DataLoader(train, 32, shuffle=True), DataLoader(val, 100))


@right(area="table")
def weights_of_two_losses_are_learned(trainer):
    """Uncertainties weigh two losses: the sum may fall below 0, and the weights have no decay."""

    class Weighed(TrainModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
            self.heads = nn.ModuleList([nn.Linear(32, 1), nn.Linear(32, 1)])
            self.log_variances = nn.Parameter(torch.zeros(2))

        def losses(self, batch):
            x, y = batch
            hidden = self.body(x)
            wanted = y, 0.1 * x[:, 4]
            found = [head(hidden)[:, 0] for head in self.heads]
            return torch.stack([F.mse_loss(one, other) for one, other in zip(found, wanted, strict=True)])

        def training_step(self, batch):
            losses = self.losses(batch)
            return (losses * (-self.log_variances).exp() + self.log_variances).sum() / 2

        def validation_step(self, batch):
            first, second = self.losses(batch)
            self.log_dict({"first": first, "second": second})

        def configure_optimizers(self):
            rest = [p for name, p in self.named_parameters() if name != "log_variances"]
            groups = [
                {"params": rest, "weight_decay": 1e-3},
                {"params": [self.log_variances], "weight_decay": 0.0, "lr": 0.03},
            ]
            return torch.optim.AdamW(groups, lr=0.01)

    trainer(max_epochs=5).fit(Weighed(), *loaders())


@right(area="table")
def second_fit_with_another_optimizer(trainer):
    """Adam first, then SGD at a small rate from there on: one module, two runs, the same data."""

    class Regressor(Manual):
        def __init__(self):
            super().__init__()
            self.automatic_optimization, self.fine = True, False

        def training_step(self, batch):
            return self.error(batch)

        def configure_optimizers(self):
            if self.fine:
                return torch.optim.SGD(self.parameters(), lr=2e-3, momentum=0.9)
            return torch.optim.Adam(self.parameters(), lr=0.01)

    module, data = Regressor(), loaders()
    trainer(max_epochs=3).fit(module, *data)
    module.fine = True
    trainer(max_epochs=2).fit(module, *data)


@right(area="table", source="https://docs.pytorch.org/docs/stable/generated/torch.optim.LBFGS.html")
def quasi_newton_steps_with_a_closure(trainer):
    """L-BFGS computes the loss several times in a step, each time from gradients that are cleared."""

    class Newton(Manual):
        def training_step(self, batch):
            optimizer = self.optimizers()

            def closure():
                optimizer.zero_grad()
                loss = self.error(batch)
                self.manual_backward(loss)
                return loss

            return optimizer.step(closure)

        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

    trainer(max_epochs=6).fit(Newton(), *loaders(640))


@right(area="table")
def hook_that_adds_noise_to_gradients(trainer):
    """A penalty on the gradient of the output by the input, and noise on gradients before the step."""

    class Smooth(Manual):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = True
            self.net[1] = nn.SiLU()

        def training_step(self, batch):
            x = batch[0].requires_grad_(True)
            found = self.net(x).squeeze(1)
            (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
            return F.mse_loss(found, batch[1]) + 0.01 * slope.square().sum(1).mean()

        def on_before_optimizer_step(self, trainer, optimizer):
            for weight in self.parameters():
                weight.grad.add_(torch.randn_like(weight.grad), alpha=1e-3)

    trainer(max_epochs=4).fit(Smooth(), *loaders())


@right(area="language")
def sparse_gradients_by_an_optimizer_for_themselves(trainer):
    """A table of words has sparse gradients and SparseAdam; rows that no batch names do not change."""

    class Bag(TrainModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.words, self.head = nn.EmbeddingBag(500, 12, sparse=True), nn.Linear(12, 3)

        def training_step(self, batch):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(F.cross_entropy(self.head(self.words(batch[0])), batch[1]))
            for optimizer in self.optimizers():
                optimizer.step()

        def validation_step(self, batch):
            self.log("loss", F.cross_entropy(self.head(self.words(batch[0])), batch[1]))

        def configure_optimizers(self):
            sparse = torch.optim.SparseAdam(self.words.parameters(), lr=0.02)
            return [sparse, torch.optim.Adam(self.head.parameters(), lr=0.02)]

    labels = torch.randint(3, (600,), generator=generator(40))
    words = 150 * labels[:, None] + torch.randint(200, (600, 8), generator=generator(41))
    train, val = TensorDataset(words[:480], labels[:480]), TensorDataset(words[480:], labels[480:])
    trainer(max_epochs=4).fit(Bag(), DataLoader(train, 32, shuffle=True), DataLoader(val, 60))
