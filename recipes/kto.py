"""Preferences from single answers that are labelled good or bad: KTO, against a frozen reference.

paceline fit kto                              # a small random Llama learns to tell text from shuffled words
paceline fit kto preset=lora model=FOLDER data=labelled.json
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from paceline.config import Experiment
from paceline.recipes.dpo import PRESETS as DPO_PRESETS
from paceline.recipes.language.data.labelled import LABELLED_ANSWERS, collate_labelled
from paceline.recipes.language.experiments import build_experiment
from paceline.recipes.language.objectives import estimated_divergence, single_losses
from paceline.recipes.language.reference import Batch, ReferenceModule
from paceline.recipes.language.settings import Amount, LanguageModelConfig, Part, Positive, Warmup


class Config(LanguageModelConfig):
    """Settings of the recipe."""

    length: PositiveInt = 128
    """The most tokens of a sample."""
    beta: Positive = 0.1
    """How closely the model is held to the reference."""
    good_weight: Amount = 1.0
    """Of good answers; so weighted, they should count 1 to 4/3 times as much as the bad ones."""
    bad_weight: Amount = 1.0
    """Of bad answers."""
    batch_size: Annotated[int, Field(ge=2)] = 16
    """Answers on each device; each is compared with one to another question of these."""
    epochs: PositiveInt = 1
    """Passes over the data."""
    learning_rate: Positive = 1e-3
    """The highest; ``scheduler`` says what follows."""
    warmup: Warmup = "10%"
    """How long the learning rate rises: a part of the run, epochs (``0.5ep``) or steps."""
    dropout: Part | None = 0.0
    """The rate of the dropout layers of model and reference; none: what they have."""


PRESETS = DPO_PRESETS


class KTO(ReferenceModule):
    """Trains a language model to prefer answers that are labelled good.

    Args:
        model: Arguments of ``load_causal_model``.
        optimization: Arguments of ``configured``.
        beta: Of ``single_losses``; so are ``good_weight`` and ``bad_weight``.
        good_weight: See there.
        bad_weight: See there.
    """

    def __init__(
        self,
        model: dict[str, Any],
        optimization: dict[str, Any],
        beta: float = 0.1,
        good_weight: float = 1.0,
        bad_weight: float = 1.0,
    ) -> None:
        super().__init__(model, optimization)
        self.of_losses = {"beta": beta, "good_weight": good_weight, "bad_weight": bad_weight}

    def training_step(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        is_good = batch["is_good"]
        gains = self.gains(batch["rows"])
        with torch.no_grad():
            divergence = estimated_divergence(self.gains(batch["others"]))
        losses = single_losses(gains, is_good, divergence, **self.of_losses)
        rewards = self.of_losses["beta"] * (gains.detach() - divergence)
        return {
            "loss": losses.mean(),
            "accuracy": ((rewards > 0) == is_good).float().mean(),
            "divergence": divergence,
        }

    def gains(self, batch: Batch) -> Tensor:
        """The log-probabilities of the answers, less those of the reference; (rows)."""
        return self.answers(batch).log_probabilities - self.answers_of_reference(batch).log_probabilities

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        return self.training_step(batch)

    test_step = validation_step


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    config.check("kto")
    weights = (config.beta, config.good_weight, config.bad_weight)
    return build_experiment(
        config,
        "kto",
        LABELLED_ANSWERS,
        partial(collate_labelled, length=config.length),
        lambda _: KTO(config.model_arguments(), config.optimization(), *weights),
        monitor="val/accuracy",
    )
