"""A reward model of a language model of Hugging Face: a number for each answer, from pairs of them.

paceline fit reward-model                     # a small random Llama learns to tell text from shuffled words
paceline fit reward-model preset=lora model=FOLDER data=pairs.json
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paceline import TrainModule
from paceline.config import Experiment
from paceline.recipes.language.data.pairs import PAIRS_OF_ANSWERS, collate_pairs
from paceline.recipes.language.experiments import build_experiment
from paceline.recipes.language.models import load_causal_model
from paceline.recipes.language.objectives import reward_losses
from paceline.recipes.language.optimization import configured
from paceline.recipes.language.reference import Batch, rows_of, weighted_mean, weights_of
from paceline.recipes.language.settings import Amount, PreferenceConfig


class Config(PreferenceConfig):
    """Settings of the recipe."""

    center: Amount = 0.0
    """The weight that draws the mean of rewards to 0."""


PRESETS: dict[str, dict[str, Any]] = {
    "full": {"learning_rate": 1e-5, "length": 1024, "trainer": {"precision": "bf16"}},
    "lora": {
        "method": "lora",
        "learning_rate": 1e-4,
        "length": 1024,
        "dtype": "bfloat16",
        "trainer": {"precision": "bf16"},
    },
}


class RewardModel(TrainModule):
    """Trains a language model with a head of one number to give the chosen answers more.

    Args:
        model: Arguments of ``load_causal_model``.
        optimization: Arguments of ``configured``.
        pad: The token that rows are filled up with, which the model's head looks for.
        center: The weight that draws the mean of rewards to 0.
    """

    def __init__(
        self, model: dict[str, Any], optimization: dict[str, Any], pad: int, center: float = 0.0
    ) -> None:
        super().__init__()
        self.model = load_causal_model(**model, rewards=True)
        self.model.config.pad_token_id = pad

    def forward(self, batch: Batch) -> Tensor:
        """The reward of each row, (rows)."""
        inside = (batch["position_ids"] == 0).cumsum(1) == 1
        tokens = batch["input_ids"].masked_fill(~inside, self.hparams["pad"])
        rewards: Tensor = self.model(tokens, attention_mask=inside.long(), use_cache=False).logits
        return rewards.squeeze(1)

    def training_step(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        chosen, rejected = self(rows_of(batch)).chunk(2)
        losses = reward_losses(chosen, rejected, batch.get("margins"), center=self.hparams["center"])
        margins, weights = (chosen - rejected).detach(), weights_of(batch["chosen"])
        return {
            "loss": weighted_mean(losses, weights),
            "weight": weights.sum(),
            "accuracy": (margins > 0).float().mean(),
            "margin": margins.mean(),
        }

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        return self.training_step(batch)

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return configured(self, self.model, **self.hparams["optimization"])


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    config.check("reward-model")

    def module(tokenizer: Any) -> RewardModel:
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        return RewardModel(config.model_arguments(), config.optimization(), pad, config.center)

    return build_experiment(
        config, "reward-model", PAIRS_OF_ANSWERS, collate_pairs, module, monitor="val/accuracy"
    )
