"""Direct preference optimization of a causal language model of Hugging Face, against a frozen reference.

paceline fit dpo                              # a small random Llama learns to tell text from shuffled words
paceline fit dpo preset=lora model=FOLDER data=pairs.json
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from paceline.config import Experiment
from paceline.recipes.language.data.pairs import PAIRS_OF_ANSWERS, collate_pairs
from paceline.recipes.language.experiments import build_experiment
from paceline.recipes.language.objectives import (
    WITHOUT_REFERENCE,
    Objective,
    preference_losses,
    reward_margins,
)
from paceline.recipes.language.reference import (
    ReferenceModule,
    all_targets,
    answers_of,
    halves,
    rows_of,
    weighted_mean,
    weights_of,
)
from paceline.recipes.language.settings import Amount, Positive, PreferenceConfig


class Config(PreferenceConfig):
    """Settings of the recipe."""

    objective: Objective = "sigmoid"
    """``sigmoid`` is DPO; ``ipo`` and ``hinge`` have a reference too, ``orpo`` and ``simpo`` none."""
    beta: Positive = 0.1
    """How closely the model is held to the reference; of ``orpo`` the weight, of ``simpo`` the scale."""
    gamma: Amount = 0.5
    """The margin of ``simpo``."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The part of pairs whose order is taken to be wrong, of ``sigmoid`` and ``simpo``."""
    sft_weight: Amount | None = None
    """Of the chosen answers' loss, beside the objective; none: 1 with ``orpo``, and else 0."""
    sft_on: Literal["answers", "all"] = "answers"
    """What that loss is of: ``all`` has the prompts too."""
    sft_mean: Literal["pairs", "tokens"] = "pairs"
    """``tokens``: the mean over all tokens of a micro-batch, which depends on its size."""


PRESETS: dict[str, dict[str, Any]] = {
    "full": {"learning_rate": 5e-7, "length": 1024, "trainer": {"precision": "bf16"}},
    "lora": {
        "method": "lora",
        "learning_rate": 5e-6,
        "length": 1024,
        "dtype": "bfloat16",
        "trainer": {"precision": "bf16"},
    },
}


class DPO(ReferenceModule):
    """Trains a language model to prefer the chosen answers.

    The reference is the model as it was: a frozen copy, or under LoRA the base without its adapters.

    Args:
        model: Arguments of ``load_causal_model``.
        optimization: Arguments of ``configured``.
        objective: Of ``preference_losses``; so are ``beta``, ``gamma`` and ``label_smoothing``.
        beta: See there.
        gamma: See there.
        label_smoothing: See there.
        sft_weight: Of the chosen answers' loss, beside it.
        sft_on: ``"answers"``, or ``"all"``: their prompts too.
        sft_mean: Over ``"pairs"``, of means over their tokens; or over all ``"tokens"`` of a micro-batch.
    """

    def __init__(
        self,
        model: dict[str, Any],
        optimization: dict[str, Any],
        objective: Objective = "sigmoid",
        beta: float = 0.1,
        gamma: float = 0.5,
        label_smoothing: float = 0.0,
        sft_weight: float = 0.0,
        sft_on: str = "answers",
        sft_mean: str = "pairs",
    ) -> None:
        super().__init__(model, optimization, objective not in WITHOUT_REFERENCE)
        self.sft_weight, self.sft_on, self.sft_mean = sft_weight, sft_on, sft_mean
        self.objective: Objective = objective
        self.of_losses = {"beta": beta, "gamma": gamma, "label_smoothing": label_smoothing}

    def training_step(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        both = rows_of(batch)
        targets = all_targets(both) if self.sft_weight and self.sft_on == "all" else both["targets"]
        token_losses = self.losses(self.model, both, targets)
        chosen, rejected = halves(answers_of(token_losses, both["targets"]))
        reference = None
        if self.objective not in WITHOUT_REFERENCE:
            reference = halves(self.answers_of_reference(both))
        losses = preference_losses(self.objective, chosen, rejected, reference, **self.of_losses)
        margins = self.of_losses["beta"] * reward_margins(chosen, rejected, reference).detach()
        weights = weights_of(batch["chosen"])
        loss, more = weighted_mean(losses, weights), {}
        if self.sft_weight:
            liked, _ = halves(answers_of(token_losses, targets))
            likelihood = weighted_mean(liked.mean, weights)
            if self.sft_mean == "tokens":
                likelihood = weighted_mean(liked.mean, weights * liked.tokens)
            loss, more = loss - self.sft_weight * likelihood, {"sft": -likelihood.detach()}
        return {
            "loss": loss,
            "weight": weights.sum(),
            "accuracy": (margins > 0).float().mean(),
            "margin": margins.mean(),
            **more,
        }

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        return self.training_step(batch)

    test_step = validation_step


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    config.check("dpo")
    names = ("objective", "beta", "gamma", "label_smoothing", "sft_on", "sft_mean")
    settings = {name: getattr(config, name) for name in names}
    of_orpo = 1.0 if config.objective == "orpo" else 0.0
    settings["sft_weight"] = of_orpo if config.sft_weight is None else config.sft_weight
    return build_experiment(
        config,
        "dpo",
        PAIRS_OF_ANSWERS,
        collate_pairs,
        lambda _: DPO(config.model_arguments(), config.optimization(), **settings),
        monitor="val/accuracy",
    )
