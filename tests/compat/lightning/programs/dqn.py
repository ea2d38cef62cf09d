"""Deep Q-learning: a replay buffer that grows while it is read, a target network, episodes as validation.

python dqn.py --max_epochs 300 --replay_size 10000 --eps_last_step 5000
"""

import argparse
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataset import IterableDataset

Experience = namedtuple("Experience", ["state", "action", "reward", "done", "new_state"])


class GridWorld:
    """A grid of 3x3 with a pit: from a corner to the other one, in at most 20 moves."""

    n_actions, observation_size, limit = 4, 4, 20
    moves = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self, size: int = 3):
        self.size, self.goal, self.pit = size, (size - 1, size - 1), (size // 2, size // 2)
        self.reset()

    def _observe(self) -> np.ndarray:
        y, x = self.place
        dy, dx = self.goal[0] - y, self.goal[1] - x
        return np.array([y, x, dy, dx], dtype=np.float32) / self.size

    def reset(self, start: int = 0) -> np.ndarray:
        self.place, self.time = divmod(start, self.size), 0
        return self._observe()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict]:
        dy, dx = self.moves[action]
        y, x = self.place
        self.place = (min(max(y + dy, 0), self.size - 1), min(max(x + dx, 0), self.size - 1))
        self.time += 1
        if self.place == self.goal:
            return self._observe(), 10.0, True, {"success": True}
        if self.place == self.pit:
            return self._observe(), -5.0, True, {"success": False}
        return self._observe(), -0.1, self.time >= self.limit, {"success": False}


class DQN(nn.Module):
    def __init__(self, obs_size: int, n_actions: int, hidden_size: int = 32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(obs_size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, hidden_size),
            nn.ReLU(),
        )
        self.value, self.advantage = nn.Linear(hidden_size, 1), nn.Linear(hidden_size, n_actions)

    def forward(self, x: Tensor) -> Tensor:
        h = self.net(x.float())
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(-1, keepdim=True)


class ReplayBuffer:
    """The last experiences, from which samples are drawn without replacement."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.buffer: deque[Experience] = deque(maxlen=capacity)
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.buffer)

    def append(self, experience: Experience) -> None:
        self.buffer.append(experience)

    def sample(self, batch_size: int) -> tuple[np.ndarray, ...]:
        indices = self.rng.choice(len(self.buffer), batch_size, replace=False)
        states, actions, rewards, dones, next_states = zip(*(self.buffer[i] for i in indices), strict=False)
        return (
            np.array(states),
            np.array(actions),
            np.array(rewards, dtype=np.float32),
            np.array(dones, dtype=bool),
            np.array(next_states),
        )


class RLDataset(IterableDataset):
    """Samples of the buffer, drawn when an epoch begins."""

    def __init__(self, buffer: ReplayBuffer, sample_size: int) -> None:
        self.buffer, self.sample_size = buffer, sample_size

    def __iter__(self) -> Iterator[tuple]:
        states, actions, rewards, dones, new_states = self.buffer.sample(self.sample_size)
        for i in range(len(dones)):
            yield states[i], actions[i], rewards[i], dones[i], new_states[i]


class EpisodeDataset(IterableDataset):
    """The cells in which the episodes of a validation begin."""

    def __init__(self, episodes: int) -> None:
        self.episodes = episodes

    def __iter__(self) -> Iterator[int]:
        yield from range(self.episodes)


class Agent:
    def __init__(self, env: GridWorld, replay_buffer: ReplayBuffer, seed: int) -> None:
        self.env, self.replay_buffer = env, replay_buffer
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        self.state = self.env.reset()

    @torch.no_grad()
    def get_action(self, net: nn.Module, epsilon: float, device: torch.device) -> int:
        if self.rng.random() < epsilon:
            return int(self.rng.integers(self.env.n_actions))
        q_values = net(torch.as_tensor(self.state, device=device)[None])
        return int(q_values.argmax(1).item())

    def play_step(self, net: nn.Module, epsilon: float = 0.0, device="cpu") -> tuple[float, bool]:
        action = self.get_action(net, epsilon, device)
        new_state, reward, done, _ = self.env.step(action)
        self.replay_buffer.append(Experience(self.state, action, reward, done, new_state))
        self.state = new_state
        if done:
            self.reset()
        return reward, done


class DQNLightning(LightningModule):
    def __init__(
        self,
        batch_size: int = 16,
        lr: float = 5e-3,
        gamma: float = 0.97,
        sync_rate: int = 5,
        replay_size: int = 200,
        warm_start_steps: int = 120,
        episode_length: int = 96,
        eps_start: float = 1.0,
        eps_end: float = 0.05,
        eps_last_step: int = 40,
        double: bool = True,
        seed: int = 0,
        **kwargs,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.env, self.eval_env = GridWorld(), GridWorld()
        self.net = DQN(GridWorld.observation_size, GridWorld.n_actions)
        self.target_net = DQN(GridWorld.observation_size, GridWorld.n_actions)
        self.target_net.load_state_dict(self.net.state_dict())
        self.target_net.requires_grad_(False)
        self.buffer = ReplayBuffer(replay_size, seed + 1)
        self.agent = Agent(self.env, self.buffer, seed + 2)
        self.total_reward = 0.0
        self.episode_reward = 0.0
        self.episodes = 0
        self.populate(warm_start_steps)

    def populate(self, steps: int) -> None:
        for _ in range(steps):
            self.agent.play_step(self.net, epsilon=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    @property
    def epsilon(self) -> float:
        part = min(1.0, self.global_step / self.hparams.eps_last_step)
        return self.hparams.eps_start + part * (self.hparams.eps_end - self.hparams.eps_start)

    def dqn_loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        states, actions, rewards, dones, next_states = batch
        q_values = self.net(states).gather(1, actions.long().unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            following = self.target_net(next_states)
            if self.hparams.double:
                best = self.net(next_states).argmax(1, keepdim=True)
                next_values = following.gather(1, best).squeeze(-1)
            else:
                next_values = following.max(1)[0]
            next_values[dones] = 0.0
        return nn.functional.smooth_l1_loss(q_values, rewards + self.hparams.gamma * next_values)

    def training_step(self, batch: tuple[Tensor, ...], nb_batch: int) -> OrderedDict:
        epsilon = self.epsilon
        reward, done = self.agent.play_step(self.net, epsilon, self.device)
        self.episode_reward += reward
        loss = self.dqn_loss(batch)
        if done:
            self.total_reward, self.episode_reward = self.episode_reward, 0.0
            self.episodes += 1
        if self.global_step % self.hparams.sync_rate == 0:
            self.target_net.load_state_dict(self.net.state_dict())

        self.log_dict({"reward": torch.tensor(reward), "train_loss": loss, "epsilon": epsilon})
        self.log("total_reward", self.total_reward, prog_bar=True)
        self.log("episodes", float(self.episodes), prog_bar=True)
        self.log("buffer", len(self.buffer))
        return OrderedDict({"loss": loss, "reward": reward})

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        for episode in batch.tolist():
            state, done, total, info = self.eval_env.reset(episode), False, 0.0, {}
            while not done:
                action = int(self(torch.as_tensor(state, device=self.device)[None]).argmax(1))
                state, reward, done, info = self.eval_env.step(action)
                total += reward
            self.log("eval_reward", total, batch_size=1, prog_bar=True)
            self.log("eval_success", float(info["success"]), batch_size=1)

    def configure_optimizers(self) -> list[Optimizer]:
        return [Adam(self.net.parameters(), lr=self.hparams.lr)]

    def train_dataloader(self) -> DataLoader:
        dataset = RLDataset(self.buffer, self.hparams.episode_length)
        return DataLoader(dataset=dataset, batch_size=self.hparams.batch_size)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(EpisodeDataset(8), batch_size=4)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["replay"] = [
            [e.state.tolist(), e.action, e.reward, e.done, e.new_state.tolist()] for e in self.buffer.buffer
        ]
        checkpoint["episodes"] = self.episodes

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self.buffer.buffer.clear()
        for state, action, reward, done, new_state in checkpoint["replay"]:
            self.buffer.append(Experience(np.float32(state), action, reward, done, np.float32(new_state)))
        self.episodes = checkpoint["episodes"]


class RewardHistory(Callback):
    """Collects the rewards of the steps, and stops when the agent is good enough."""

    def __init__(self, solved: float = 9.5):
        self.solved = solved
        self.rewards: list[float] = []
        self.means: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rewards.append(outputs["reward"])

    def on_train_epoch_end(self, trainer, pl_module):
        self.means.append(sum(self.rewards) / len(self.rewards))
        self.rewards = []
        if trainer.callback_metrics["eval_reward"] > self.solved:
            trainer.should_stop = True


def parse_args(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--gamma", type=float, default=0.97)
    parser.add_argument("--sync_rate", type=int, default=5)
    parser.add_argument("--replay_size", type=int, default=400)
    parser.add_argument("--warm_start_steps", type=int, default=200)
    parser.add_argument("--eps_last_step", type=int, default=40)
    parser.add_argument("--episode_length", type=int, default=112)
    parser.add_argument("--max_epochs", type=int, default=10)
    return parser.parse_args(argv)


def main(argv=(), **trainer_options):
    args = parse_args(argv)
    seed_everything(0)
    model = DQNLightning(**vars(args))
    history = RewardHistory()
    best = ModelCheckpoint(monitor="eval_reward", mode="max", filename="dqn-{epoch:02d}-{eval_reward:.1f}")
    trainer = Trainer(
        callbacks=[history, best, EarlyStopping("train_loss", patience=50, check_on_train_epoch_end=True)],
        logger=CSVLogger("rl_logs", name="dqn", flush_logs_every_n_steps=10),
        gradient_clip_val=10.0,
        val_check_interval=1.0,
        log_every_n_steps=1,
        **{"max_epochs": args.max_epochs} | trainer_options,
    )
    trainer.fit(model)
    assert len(history.means) == trainer.current_epoch
    assert not history.rewards

    player = DQNLightning.load_from_checkpoint(best.best_model_path, warm_start_steps=0)
    assert player.hparams.warm_start_steps == 0
    assert 0 < len(player.buffer) <= args.replay_size
    (found,) = trainer.validate(player, verbose=False)
    assert abs(found["eval_reward"] - float(best.best_model_score)) < 1e-5
    return trainer, model


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
