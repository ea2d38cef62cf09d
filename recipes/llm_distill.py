"""Distillation of a language model of Hugging Face: a small one learns the distributions of a large one.

paceline fit llm-distill teacher=FOLDER                 # a small random Llama on a CPU, to see it work
paceline fit llm-distill preset=full model=FOLDER teacher=FOLDER data=chats.jsonl
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, PositiveInt
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from paceline import PacelineError
from paceline.config import Experiment
from paceline.recipes.data.hugging_face import exported_by
from paceline.recipes.language.models import load_causal_model, load_tokenizer
from paceline.recipes.language.objectives import distillation_losses
from paceline.recipes.language.settings import Positive
from paceline.recipes.llm_finetune import PRESETS, FineTune, build_of
from paceline.recipes.llm_finetune import Config as FineTuneConfig
from paceline.recipes.networks.causal_lm import abilities_of, hidden_and_head
from paceline.recipes.networks.head_loss import IGNORED, logits_of, repeatable, rows_at_once

Share = Annotated[float, Field(ge=0, le=1)]
__all__ = ["PRESETS", "Config", "Distill", "build"]


class Config(FineTuneConfig):
    """Settings of the recipe."""

    epochs: PositiveInt = 1
    """Passes over the data."""
    teacher: Annotated[str, BeforeValidator(exported_by)]
    """A name on the Hugging Face hub, or a folder of a model or of a run, with the same tokens."""
    temperature: Positive = 1.0
    """Divides the logits of both."""
    divergence: Share = 0.0
    """0: of the student from the teacher, which it covers; 1: of the teacher from the student, which seeks
    its modes; between: of both from a mixture (https://arxiv.org/abs/2306.13649)."""
    soft: Share = 1.0
    """What the teacher counts in the loss; the tokens themselves count the rest."""


class Distill(FineTune):
    """Trains a causal language model on what another says at each token of the answers.

    Args:
        model: Arguments of ``load_causal_model``.
        optimization: Arguments of ``configured``.
        teacher: Arguments of ``load_causal_model``.
        temperature: Of ``distillation_losses``; so is ``divergence``.
        divergence: See there.
        soft: What the teacher counts in the loss.
    """

    def __init__(
        self,
        model: dict[str, Any],
        optimization: dict[str, Any],
        teacher: dict[str, Any],
        temperature: float = 1.0,
        divergence: float = 0.0,
        soft: float = 1.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(model, optimization, label_smoothing)
        self.teacher = load_causal_model(**teacher).requires_grad_(False).eval()
        self.able_teacher = abilities_of(self.teacher)

    def training_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        targets = batch["targets"]
        inputs = {name: part for name, part in batch.items() if name not in ("targets", "weights")}
        learned = targets != IGNORED
        weights = batch.get("weights", torch.ones_like(targets, dtype=torch.float32))
        hidden, head = hidden_and_head(self.model, self.able, **inputs)
        with torch.no_grad():
            said, teachers_head = hidden_and_head(self.teacher.eval(), self.able_teacher, **inputs)
        total = hidden.new_zeros((), dtype=torch.float32)
        flat = hidden.flatten(0, 1)
        rows = max(1, *(rows_at_once(flat, its) for its in (head, teachers_head)))
        head, teachers_head = (repeatable(one, hidden.device) for one in (head, teachers_head))
        parts = (one[learned].split(rows) for one in (hidden, said, targets, weights))
        for x, its, y, counted in zip(*parts, strict=True):
            arguments = (x, head, its, teachers_head, y, counted)
            again = checkpoint(self._losses, *arguments, use_reentrant=False, preserve_rng_state=False)
            total = total + again
        count = weights[learned].sum()
        return {"loss": total / count.clamp(min=torch.finfo(count.dtype).tiny), "weight": count}

    def _losses(
        self,
        hidden: Tensor,
        head: Any,
        said: Tensor,
        teachers_head: Any,
        targets: Tensor,
        weights: Tensor,
    ) -> Tensor:
        """Of some tokens, the sum: their logits are computed again in the backward pass."""
        settings = self.hparams
        logits = logits_of(hidden, head)
        with torch.no_grad():
            theirs = logits_of(said, teachers_head)
        how = {name: settings[name] for name in ("temperature", "divergence")}
        both = min(logits.shape[-1], theirs.shape[-1])  # models may have rows that are no token
        soft = (weights * distillation_losses(logits[..., :both], theirs[..., :both], **how)).sum()
        if settings["soft"] == 1:
            return soft
        smoothing = self.label_smoothing if self.training else 0.0
        hard = torch.nn.functional.cross_entropy(
            logits.float(), targets, reduction="none", label_smoothing=smoothing
        )
        total: Tensor = settings["soft"] * soft + (1 - settings["soft"]) * (weights * hard).sum()
        return total

    def validation_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        loss, count = self.forward(**batch)  # under ZeRO 3 the same module uses the head as in training
        return {"loss": loss, "weight": count}

    test_step = validation_step


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    config.check("llm-distill")
    if config.liger:
        raise PacelineError(
            "llm-distill has no kernel of liger-kernel", code="recipe-settings", fix="liger=false"
        )
    _check_tokens(config)
    teacher = {"model": config.teacher, "dtype": config.dtype, "dropout": 0.0}
    how = (config.temperature, config.divergence, config.soft, config.label_smoothing)
    return build_of(
        config,
        "llm-distill",
        lambda: Distill(config.model_arguments(), config.optimization(), teacher, *how),
    )


def _check_tokens(config: Config) -> None:
    """Refuse a teacher to which the numbers of tokens mean something else."""
    theirs = load_tokenizer(config.model_copy(update={"model": config.teacher, "chat_template": None}))
    ours, others = (one.get_vocab() for one in (load_tokenizer(config), theirs))
    differing = {*ours.items()} ^ {*others.items()}
    if differing:
        token = min(differing, key=lambda one: one[1])[0]
        raise PacelineError(
            "teacher: its tokens are not those of the model",
            code="tokenizer-mismatch",
            got=f"{token!r} is number {others.get(token)} there, and {ours.get(token)} in {config.model}",
            fix="a teacher of the same family; or answers that it wrote, as data of llm-finetune",
        )
