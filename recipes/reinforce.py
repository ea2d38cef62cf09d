"""REINFORCE (Williams, 1992): a policy learns from episodes that it plays itself; the data are their seeds.

paceline fit reinforce                    # balances CartPole-v1 for 500 steps, on a CPU in seconds
paceline fit reinforce environment=Acrobot-v1
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.utils.data import DataLoader

from paceline import PacelineError, TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment, RunConfig

Part = Annotated[float, Field(ge=0, le=1)]


class Config(RunConfig):
    """Settings of the recipe."""

    environment: str = "CartPole-v1"
    """One of Gymnasium whose observations are vectors, and whose actions are choices."""
    width: PositiveInt = 64
    """Numbers in each of the two hidden layers."""
    discount: Part = 0.99
    """What a reward counts one step earlier."""
    steps: PositiveInt = 60
    """Optimizer steps."""
    batch_size: Annotated[int, Field(ge=2)] = 16
    """Episodes in a step, over all devices; each is compared with all others."""
    held_out: PositiveInt = 100
    """Episodes that a validation plays, always those of the same seeds."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-2
    """Of Adam, at the start; a cosine ends at 0."""


PRESETS: dict[str, dict[str, Any]] = {
    "acrobot": {"environment": "Acrobot-v1", "steps": 100},
}
HELD_OUT = 2**31
"""The seed of the first episode of a validation."""


class Reinforce(TrainModule):
    """Makes actions more likely that were followed by more reward than in the other episodes of the step.

    Args:
        environment: Its name in Gymnasium.
        width: Numbers in each hidden layer.
        discount: What a reward counts one step earlier.
    """

    like: Tensor  # of the weights' dtype, on their device

    def __init__(
        self, environment: str, width: int = 64, discount: float = 0.99, learning_rate: float = 1e-2
    ) -> None:
        super().__init__()
        one = made(environment)
        self.policy = nn.Sequential(
            nn.Linear(one.observation_space.shape[0], width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, int(one.action_space.n)),
        )
        self.longest: int = one.spec.max_episode_steps
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def play(self, seeds: list[int], greedy: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One episode for each seed, all at once.

        Args:
            seeds: Of the environment, and of the choice of actions.
            greedy: Choose the most likely action.

        Returns:
            Observations (episodes, steps, numbers), actions, rewards, and where an episode had not ended
            (episodes, steps).
        """
        games = [made(self.hparams["environment"]) for _ in seeds]
        seen = np.stack([game.reset(seed=seed)[0] for game, seed in zip(games, seeds, strict=True)])
        chance = np.stack([np.random.default_rng(seed).random(self.longest) for seed in seeds])
        running = np.ones(len(seeds), dtype=bool)
        observations: list[Tensor] = []
        actions: list[Tensor] = []
        rewards: list[Tensor] = []
        counted: list[Tensor] = []
        while running.any():
            observed = torch.tensor(seen).to(self.like)
            with torch.no_grad():
                likely = self.policy(observed).softmax(1).cpu().double()
            drawn = torch.from_numpy(chance[:, len(actions)])[:, None]
            chosen = likely.argmax(1) if greedy else (likely.cumsum(1)[:, :-1] < drawn).sum(1)
            reward, still = np.zeros(len(seeds)), running.copy()
            for k in np.flatnonzero(running):
                action = games[k].action_space.start + int(chosen[k])
                seen[k], reward[k], ended, cut, _ = games[k].step(action)
                still[k] = not (ended or cut)
            observations.append(observed)
            actions.append(chosen)
            rewards.append(torch.from_numpy(reward))
            counted.append(torch.from_numpy(running))
            running = still
        for game in games:
            game.close()
        device, precise = self.like.device, torch.promote_types(self.like.dtype, torch.float32)
        return (
            torch.stack(observations, 1),
            torch.stack(actions, 1).to(device),
            torch.stack(rewards, 1).to(precise).to(device),
            torch.stack(counted, 1).to(device),
        )

    def training_step(self, batch: Tensor) -> dict[str, Tensor]:
        observations, actions, rewards, counted = self.play(batch.tolist(), greedy=False)
        advantage = self.advantage(rewards, counted)
        likely = self.policy(observations).log_softmax(2).gather(2, actions[:, :, None])[:, :, 0]
        weight = counted.sum()
        self.log("reward", rewards.sum(1).mean(), weight=len(rewards))
        return {"loss": -(likely * advantage).sum() / weight, "weight": weight}

    def advantage(self, rewards: Tensor, counted: Tensor) -> Tensor:
        """What followed each action (episodes, steps), less the mean over all episodes of the step.

        It is divided by its root mean square over the step.
        """
        returns = rewards.new_zeros(len(rewards), self.longest)
        for step in reversed(range(rewards.shape[1])):
            later = returns[:, step + 1] if step + 1 < self.longest else 0.0
            returns[:, step] = rewards[:, step] + self.hparams["discount"] * later
        sums = torch.cat([returns.sum(0), returns.new_tensor([len(returns)])])
        total = self.all_gather(sums).reshape(-1, len(sums)).sum(0)
        advantage = (returns - total[:-1] / total[-1])[:, : rewards.shape[1]] * counted
        sums = torch.stack([advantage.square().sum(), counted.sum().to(advantage)])
        squares, count = self.all_gather(sums).reshape(-1, 2).sum(0)
        scaled: Tensor = advantage / (squares / count).sqrt().clamp_min(1e-8)
        return scaled.to(self.like)

    def validation_step(self, batch: Tensor) -> dict[str, Tensor]:
        rewards = self.play(batch.tolist(), greedy=True)[2]
        return {"reward": rewards.sum(1).mean()}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), self.hparams["learning_rate"])
        return {"optimizer": optimizer, "lr_scheduler": "cosine"}


def made(environment: str) -> Any:
    """An environment.

    Raises:
        PacelineError: for one that Gymnasium does not have, or of another kind.
    """
    try:
        import gymnasium
    except ImportError:
        raise PacelineError(
            "reinforce needs gymnasium", code="package-missing", fix="pip install 'paceline[recipes]'"
        ) from None
    try:
        game = gymnasium.make(environment)
    except gymnasium.error.Error as error:
        raise PacelineError(
            f"environment={environment} cannot be made", code="recipe-settings", got=str(error)
        ) from None
    spaces = game.observation_space, game.action_space
    kinds = tuple(type(space).__name__ for space in spaces)
    shape, longest = game.observation_space.shape, game.spec and game.spec.max_episode_steps
    if kinds != ("Box", "Discrete") or shape is None or len(shape) != 1 or not longest:
        raise PacelineError(
            f"environment={environment} does not fit",
            code="recipe-settings",
            got=f"observations {spaces[0]}, actions {spaces[1]}",
            fix="one with a vector of numbers, a choice of actions and a last step, such as CartPole-v1",
        )
    return game


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data: the weights with the largest reward are kept."""
    trainer = config.make_trainer(
        name="reinforce",
        max_steps=config.steps,
        global_batch_size=config.batch_size,
        validate_every=10,
        callbacks=[Checkpoint(monitor="val/reward", mode="max")],
    )
    torch.manual_seed(trainer.settings.seed)
    module = Reinforce(config.environment, config.width, config.discount, config.learning_rate)
    first = trainer.settings.seed * 10**6
    train: Any = range(first, first + config.steps * config.batch_size)
    val: Any = range(HELD_OUT, HELD_OUT + config.held_out)
    return Experiment(
        trainer,
        module,
        train=DataLoader(train, batch_size=config.batch_size),
        val=DataLoader(val, batch_size=config.batch_size),
    )
