"""Reinforcement learning: an endless loader of experience, manual optimization, the most likely actions."""

from collections.abc import Callable, Iterator

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, IterableDataset


class Pole:
    """An inverted pendulum of its own, which begins in the same state each time."""

    def reset(self):
        self.state, self.time = torch.tensor([0.05, 0.0]), 0
        return self.state

    def step(self, action: int):
        angle, speed = self.state
        speed = speed + 0.1 * torch.sin(angle) + (0.05 if action else -0.05)
        self.state, self.time = torch.stack([angle + 0.1 * speed, speed]), self.time + 1
        done = bool(self.state[0].abs() > 0.3) or self.time >= 12
        return self.state, 1.0 - float(self.state[0].abs()), done


class ExperienceSourceDataset(IterableDataset):
    def __init__(self, generate_batch: Callable):
        self.generate_batch = generate_batch

    def __iter__(self) -> Iterator:
        yield from self.generate_batch()


class PPOLightning(LightningModule):
    def __init__(
        self, gamma=0.99, lr_actor=3e-3, lr_critic=1e-2, batch_size=8, steps_per_epoch=32, clip=0.2
    ):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        self.env = Pole()
        self.avg_ep_reward = 0.0

    def forward(self, x: Tensor):
        logits = self.actor(x)
        action = logits.argmax(-1)
        log_prob = torch.log_softmax(logits, -1).gather(-1, action[..., None]).squeeze(-1)
        return log_prob, action, self.critic(x).squeeze(-1)

    def discount_rewards(self, rewards):
        found, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + self.hparams.gamma * total
            found.insert(0, total)
        return found

    def generate_trajectory_samples(self):
        state, rewards, rows, episodes = self.env.reset(), [], [], []
        for step in range(self.hparams.steps_per_epoch):
            with torch.no_grad():
                log_prob, action, value = self(state)
            following, reward, done = self.env.step(int(action))
            rows.append((state, action, log_prob, value))
            rewards.append(reward)
            state = following
            if done or step == self.hparams.steps_per_epoch - 1:
                returns = self.discount_rewards(rewards)
                for (s, a, p, v), q in zip(rows, returns, strict=True):
                    yield s, a, p, torch.tensor(q), torch.tensor(q) - v
                episodes.append(sum(rewards))
                state, rewards, rows = self.env.reset(), [], []
        self.avg_ep_reward = sum(episodes) / len(episodes)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx):
        state, action, old_log_prob, q_value, advantage = batch
        optimizer_actor, optimizer_critic = self.optimizers()
        self.log("avg_ep_reward", self.avg_ep_reward, prog_bar=True, on_step=False, on_epoch=True)

        all_log_probs = torch.log_softmax(self.actor(state), -1)
        ratio = torch.exp(all_log_probs.gather(-1, action[:, None]).squeeze(-1) - old_log_prob)
        clipped = torch.clamp(ratio, 1 - self.hparams.clip, 1 + self.hparams.clip) * advantage
        loss_actor = -torch.min(ratio * advantage, clipped).mean()
        optimizer_actor.zero_grad()
        self.manual_backward(loss_actor)
        optimizer_actor.step()

        loss_critic = (q_value - self.critic(state).squeeze(-1)).pow(2).mean()
        optimizer_critic.zero_grad()
        self.manual_backward(loss_critic)
        optimizer_critic.step()
        self.log_dict({"loss_actor": loss_actor, "loss_critic": loss_critic}, prog_bar=True)

    def configure_optimizers(self) -> list[Optimizer]:
        optimizer_actor = Adam(self.actor.parameters(), lr=self.hparams.lr_actor)
        optimizer_critic = Adam(self.critic.parameters(), lr=self.hparams.lr_critic)
        return optimizer_actor, optimizer_critic

    def train_dataloader(self) -> DataLoader:
        dataset = ExperienceSourceDataset(self.generate_trajectory_samples)
        return DataLoader(dataset=dataset, batch_size=self.hparams.batch_size)


def main(max_epochs=3, **trainer_options):
    seed_everything(0)
    model = PPOLightning()
    trainer = Trainer(max_epochs=max_epochs, log_every_n_steps=1, **trainer_options)
    trainer.fit(model)
    return trainer, model
