"""REINFORCE: what an action is credited with, and episodes that their seeds decide."""

import pytest
import torch

from paceline import PacelineError, Trainer
from paceline.recipes.reinforce import Config, Reinforce, build, made

pytest.importorskip("gymnasium")


def test_advantages_are_returns_less_their_mean_over_episodes():
    found = []

    class Recorded(Reinforce):
        def training_step(self, batch):
            rewards = torch.tensor([[1.0, 2.0, 4.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
            counted = torch.tensor([[True, True, True], [True, False, False]])
            found.append(self.advantage(rewards, counted))
            return super().training_step(batch)

    trainer = Trainer(accelerator="cpu", max_steps=1, progress=False, loggers=False, run_dir=None)
    module = Recorded("CartPole-v1", width=4, discount=0.5)
    trainer.fit(module, [torch.tensor([1, 2])])
    returns = [[1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4.0], [3.0, 0.0, 0.0]]
    mean = [sum(column) / 2 for column in zip(*returns, strict=True)]
    rows = torch.tensor([[r - m for r, m in zip(row, mean, strict=True)] for row in returns])
    rows[1, 1:] = 0  # that episode had ended
    torch.testing.assert_close(found[0], rows / (rows.square().sum() / 4).sqrt())


def test_seeds_decide_episodes_alone_and_among_others():
    torch.manual_seed(0)
    module = Reinforce("CartPole-v1", width=4)
    observations, actions, rewards, counted = module.play([5, 6, 7], greedy=False)
    alone = module.play([6], greedy=False)
    steps = int(counted[1].sum())
    assert rewards[1].sum() == steps == alone[3].sum()
    assert torch.equal(actions[1, :steps], alone[1][0])
    torch.testing.assert_close(observations[1, :steps], alone[0][0])
    assert not torch.equal(observations[0, 0], observations[1, 0])
    again = module.play([5, 6, 7], greedy=False)
    assert torch.equal(again[1], actions)
    assert len(observations[1].unique(dim=0)) > 3  # not one observation many times


@pytest.mark.launch  # for its length
def test_it_learns_to_balance(tmp_path):
    trainer = {"run_dir": None, "progress": False, "validate_every": 25}
    experiment = build(Config(steps=25, held_out=25, trainer=trainer))
    before = experiment.trainer.validate(experiment.module, experiment.val)["val/reward"]
    experiment.fit()  # and validates at the end
    assert before < 60
    assert experiment.trainer.metrics["val/reward"] > 150


@pytest.mark.parametrize("name", ["CartPole-v9", "Pendulum-v1", "nothing"])
def test_an_environment_that_does_not_fit_is_an_error(name):
    with pytest.raises(PacelineError, match=f"environment={name}"):
        made(name)
