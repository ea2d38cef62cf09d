"""A language model with a reference: the model as it was, which says what each answer gained."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from paceline import PacelineError, TrainModule
from paceline.recipes.language.adapters import takes_from_base
from paceline.recipes.language.models import load_causal_model
from paceline.recipes.language.objectives import Answers
from paceline.recipes.language.optimization import configured
from paceline.recipes.networks.causal_lm import Abilities, abilities_of, hidden_and_head
from paceline.recipes.networks.head_loss import IGNORED, token_losses

Batch = dict[str, Tensor]
"""Rows with one conversation each: ``input_ids``, ``targets``, ``position_ids``, ``starts``; and
``weights``, where a sample has another one than 1."""


class ReferenceModule(TrainModule):
    """A language model, and what it was before it was trained: a frozen copy, or the base without adapters.

    Args:
        model: Arguments of ``load_causal_model``.
        optimization: Arguments of ``configured``.
        has_reference: Whether the objective asks for the reference.
    """

    def __init__(
        self, model: dict[str, Any], optimization: dict[str, Any], has_reference: bool = True
    ) -> None:
        super().__init__()
        if has_reference and takes_from_base(model["lora"] or {}):
            raise PacelineError(
                f"adapters that begin by {model['lora']['init_lora_weights']} change the base, which is no "
                "reference then",
                code="recipe-settings",
                fix="lora_init=default",
            )
        self.model = load_causal_model(**model)
        plain = model.get("quantization") or model.get("attn_implementation")
        self.able = Abilities() if plain else abilities_of(self.model)
        self.optimization = optimization
        self.reference = None
        if has_reference and model["lora"] is None:
            self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()

    def answers(self, batch: Batch) -> Answers:
        """What the model says of the answers."""
        return answers_of(self.losses(self.model, batch, batch["targets"]), batch["targets"])

    @torch.no_grad()
    def answers_of_reference(self, batch: Batch) -> Answers:
        """What the reference says of them."""
        with self.model.disable_adapter() if self.reference is None else nullcontext():
            losses = self.losses(self.reference or self.model, batch, batch["targets"])
        return answers_of(losses, batch["targets"])

    def losses(self, model: nn.Module, batch: Batch, targets: Tensor) -> Tensor:
        """Of each token, (rows, length); 0 where there is no target."""
        inputs = {name: part for name, part in batch.items() if name not in ("targets", "weights")}
        hidden, head = hidden_and_head(model, self.able, **inputs)
        return token_losses(hidden, head, targets)

    def configure_optimizers(self) -> Any:
        return configured(self, self.model, **self.optimization)


def answers_of(losses: Tensor, targets: Tensor) -> Answers:
    """The answers of rows, from the losses of their tokens: those that are targets."""
    learned = targets != IGNORED
    return Answers((losses * learned).sum(1).neg(), learned.sum(1))


def all_targets(batch: Batch) -> Tensor:
    """The token that follows each in the first conversation of a row, its prompt included."""
    inside = (batch["position_ids"] == 0).cumsum(1) == 1
    following = inside & inside.roll(-1, 1)
    following[:, -1] = False
    return torch.where(following, batch["input_ids"].roll(-1, 1), IGNORED)


def rows_of(pairs: dict[str, Any]) -> Batch:
    """The rows of a batch of pairs: those that are chosen, and then the others."""
    return {name: torch.cat([pairs["chosen"][name], pairs["rejected"][name]]) for name in pairs["chosen"]}


def halves(answers: Answers) -> tuple[Answers, Answers]:
    """Of rows that were put together: the first and the second half of them."""
    first, second = zip(*(part.chunk(2) for part in answers), strict=True)
    return Answers(*first), Answers(*second)


def weights_of(batch: Batch) -> Tensor:
    """What each row counts: 1 where nothing else is said; (rows), float32."""
    given = batch.get("weights")
    if given is None:
        return torch.ones(len(batch["input_ids"]), device=batch["input_ids"].device)
    return given[:, 0]


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """The mean by weights; 0 where all are 0."""
    return (weights * values).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
