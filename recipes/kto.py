"""Preferences from single answers that are labelled good or bad: KTO, against a frozen reference.

paceline fit kto                              # a small random Llama learns to tell text from shuffled words
paceline fit kto preset=lora model=FOLDER data=labelled.json
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor

from paceline.config import Experiment
from paceline.recipes.dpo import PRESETS as DPO_PRESETS
from paceline.recipes.language.data.labelled import LABELLED_ANSWERS, collate_labelled
from paceline.recipes.language.experiments import build_experiment
from paceline.recipes.language.objectives import estimated_divergence, single_losses
from paceline.recipes.language.reference import Batch, ReferenceModule, weighted_mean, weights_of
from paceline.recipes.language.settings import Amount, Positive, PreferenceConfig


class Config(PreferenceConfig):
    """Settings of the recipe."""

    length: PositiveInt = 96
    """The most tokens of a sample."""
    beta: Positive = 0.1
    """How closely the model is held to the reference."""
    good_weight: Amount = 1.0
    """Of good answers; so weighted, they should count 1 to 4/3 times as much as the bad ones."""
    bad_weight: Amount = 1.0
    """Of bad answers."""
    batch_size: PositiveInt = 16
    """Answers on each device; each is compared with one to another question of its optimizer step."""


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

        self._of_step: tuple[list[Any], list[int]] | None = None
        self._divergence: Tensor | None = None
        self._judged: list[tuple[Tensor, ...]] = []

    def on_step_start(self, trainer: Any, batches: list[Any]) -> None:
        self._of_step = batches, trainer.loop.step_facts().sizes

    def training_step(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        if self._of_step is not None:  # here, where the strategy and the precision are in force
            self._divergence, self._of_step = self.divergence_of(*self._of_step), None
        gains = self.gains(batch["rows"])
        divergence = self._divergence
        if divergence is None:
            with torch.no_grad():
                others = self.gains(batch["others"])
            divergence = estimated_divergence(others, weights_of(batch["others"]))
        return self._judgement(gains, batch["is_good"], weights_of(batch["rows"]), divergence)

    @torch.no_grad()
    def divergence_of(self, batches: list[Any], sizes: list[int]) -> Tensor:
        """From the reference, over all micro-batches and ranks of a step: what one large batch gives."""
        sums = torch.zeros(2, device=self.device)
        for batch, size in zip(batches, sizes, strict=True):
            gains, weights = self.gains(batch["others"]), weights_of(batch["others"])
            sums = sums + torch.stack([(gains * weights).sum(), weights.sum()]) * bool(size)
        sums = self.trainer.ranks.all_reduce(sums)
        return estimated_divergence(sums[:1] / sums[1].clamp(min=torch.finfo(sums.dtype).tiny))

    def gains(self, batch: Batch) -> Tensor:
        """The log-probabilities of the answers, less those of the reference; (rows)."""
        return self.answers(batch).log_probabilities - self.answers_of_reference(batch).log_probabilities

    def _judgement(
        self, gains: Tensor, is_good: Tensor, weights: Tensor, divergence: Tensor
    ) -> dict[str, Tensor]:
        losses = single_losses(gains, is_good, divergence, **self.of_losses)
        rewards = self.of_losses["beta"] * (gains.detach() - divergence)
        return {
            "loss": weighted_mean(losses, weights),
            "weight": weights.sum(),
            "accuracy": ((rewards > 0) == is_good).float().mean(),
            "divergence": divergence,
        }

    def on_validation_start(self, trainer: Any) -> None:
        self._judged = []

    def validation_step(self, batch: Any) -> None:
        both = (self.gains(batch[name]) for name in ("rows", "others"))
        self._judged_now = (*both, batch["is_good"], weights_of(batch["rows"]))

    def on_validation_step_end(self, trainer: Any, output: Any, batch: Any, batch_idx: int) -> None:
        self._judged.append(self._judged_now)  # here, where no batch comes that only keeps ranks in step

    def on_validation_end(self, trainer: Any) -> None:
        """All answers are judged by one divergence, that of the whole validation."""
        mine = [torch.cat(part).cpu() for part in zip(*self._judged, strict=True)]
        found = [part for part in trainer.ranks.gather_data(mine) if part]
        gains, others, is_good, weights = (torch.cat(part) for part in zip(*found, strict=True))
        judged = self._judgement(gains, is_good, weights, estimated_divergence(others, weights))
        self.log_dict({name: value for name, value in judged.items() if name != "weight"})
        self._judged = []

    on_test_start, test_step = on_validation_start, validation_step
    on_test_step_end, on_test_end = on_validation_step_end, on_validation_end


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
        compares=True,
    )
