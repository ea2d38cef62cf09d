"""A reward model of a language model of Hugging Face: a number for each answer, from pairs of them.

paceline fit reward-model                     # a small random Llama learns to tell text from shuffled words
paceline fit reward-model preset=lora model=FOLDER data=pairs.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from paceline import TrainModule
from paceline.config import Experiment
from paceline.recipes.data.conversations import encode_all, split_off
from paceline.recipes.data.preferences import (
    PairRows,
    collate_pairs,
    encode_pair,
    read_pairs,
    shuffled_pairs,
)
from paceline.recipes.language.experiments import build_experiment
from paceline.recipes.language.models import load_causal_model, load_tokenizer
from paceline.recipes.language.objectives import reward_losses
from paceline.recipes.language.optimization import configured
from paceline.recipes.language.reference import Batch
from paceline.recipes.language.settings import Amount, LanguageModelConfig, Part, Positive, Warmup


class Config(LanguageModelConfig):
    """Settings of the recipe."""

    data: Path | None = None
    """JSON or JSON lines with ``chosen`` and ``rejected``; none: paragraphs, and their words shuffled."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The part of ``data`` to validate on."""
    length: PositiveInt = 128
    """The most tokens of a conversation; what is longer is cut off."""
    center: Amount = 0.0
    """The weight that draws the mean of rewards to 0."""
    batch_size: PositiveInt = 8
    """Pairs on each device."""
    epochs: PositiveInt = 1
    """Passes over the data."""
    learning_rate: Positive = 1e-3
    """The highest; ``scheduler`` says what follows."""
    warmup: Warmup = "10%"
    """How long the learning rate rises: a part of the run, epochs (``0.5ep``) or steps."""
    dropout: Part | None = 0.0
    """The rate of the model's dropout layers; none: what they have."""


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

    def training_step(self, batch: dict[str, Batch]) -> dict[str, Tensor]:
        both = {
            name: torch.cat([batch["chosen"][name], batch["rejected"][name]]) for name in batch["chosen"]
        }
        chosen, rejected = self(both).chunk(2)
        losses = reward_losses(chosen, rejected, center=self.hparams["center"])
        margins = (chosen - rejected).detach()
        return {
            "loss": losses.mean(),
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
    tokenizer = load_tokenizer(config)
    if config.data is None:
        parts = shuffled_pairs()
    else:
        parts = split_off(read_pairs(config.data), config.validation)
    train, val = (PairRows(encode_all(tokenizer, part, config.length, encode_pair)) for part in parts)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return build_experiment(
        config,
        "reward-model",
        tokenizer,
        (train, val),
        collate_pairs,
        lambda: RewardModel(config.model_arguments(), config.optimization(), pad, config.center),
        monitor="val/accuracy",
        left_out="pairs do not differ within their length",
    )
