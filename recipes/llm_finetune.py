"""Instruction tuning of a causal language model of Hugging Face: full, LoRA or QLoRA.

paceline fit llm-finetune                     # a small random Llama on a CPU, to see it work
paceline fit llm-finetune preset=lora model=Qwen/Qwen3-0.6B data=alpaca.json
paceline fit finetune.yaml                    # the same from one file: recipe, model, data, trainer
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline import PacelineError, TrainModule
from paceline.config import Experiment, shapes_alone
from paceline.recipes.data.hugging_face import require_packages
from paceline.recipes.data.tiny_models import tiny_conversations
from paceline.recipes.language.data.loading import Kind
from paceline.recipes.language.data.rows import Rows, collate
from paceline.recipes.language.data.samples import SAMPLES, Conversation, Reading, Sample
from paceline.recipes.language.data.templates import Encoded, Encoding, TrainOn
from paceline.recipes.language.experiments import build_experiment
from paceline.recipes.language.models import load_causal_model
from paceline.recipes.language.optimization import configured
from paceline.recipes.language.settings import LanguageModelConfig, Part
from paceline.recipes.networks.causal_lm import (
    Abilities,
    abilities_of,
    hidden_and_head,
    refuse_packing_where_rows_mix,
)
from paceline.recipes.networks.head_loss import IGNORED, mean_loss, token_losses


class Config(LanguageModelConfig):
    """Settings of the recipe."""

    train_on: TrainOn = "answers"
    """What is learned of conversations: all answers, the ``last`` one, or ``all`` tokens."""
    packing: bool = True
    """Rows of several samples, which do not see each other."""
    streaming: bool = False
    """Read and encode samples when they are asked for, in place of keeping all in memory: of JSON lines,
    and of datasets of Hugging Face."""
    label_smoothing: Part = 0.0
    """The part of each target that is spread over all tokens alike."""
    liger: bool = False
    """Compute the loss by the kernel of liger-kernel, on GPUs."""


PRESETS: dict[str, dict[str, Any]] = {
    "full": {"learning_rate": 1e-5, "length": 2048, "trainer": {"precision": "bf16"}},
    "lora": {
        "method": "lora",
        "learning_rate": 2e-4,
        "length": 2048,
        "dtype": "bfloat16",
        "trainer": {"precision": "bf16"},
    },
}


class FineTune(TrainModule):
    """Trains a causal language model on the answers of conversations.

    Args:
        model: Arguments of ``load_causal_model``.
        optimization: Arguments of ``configured``.
        label_smoothing: The part of each target that is spread over all tokens alike.
        liger: Compute the loss by the kernel of liger-kernel.
    """

    def __init__(
        self,
        model: dict[str, Any],
        optimization: dict[str, Any],
        label_smoothing: float = 0.0,
        liger: bool = False,
    ) -> None:
        super().__init__()
        self.model = load_causal_model(**model)
        plain = model.get("quantization") or model.get("attn_implementation")
        self.able = Abilities() if plain else abilities_of(self.model)
        self.label_smoothing, self.liger = label_smoothing, liger

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        starts: Tensor | None = None,
        targets: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Any:
        """Logits; or with targets the mean loss, and over how many tokens, or the sum of their weights."""
        hidden, head = hidden_and_head(self.model, self.able, input_ids, position_ids, starts)
        if targets is None:
            return head(hidden)
        smoothing = self.label_smoothing if self.training else 0.0
        if weights is not None:
            losses = token_losses(hidden, head, targets, smoothing=smoothing)
            total = (weights * (targets != IGNORED)).sum()
            return (weights * losses).sum() / total.clamp(min=torch.finfo(total.dtype).tiny), total
        return mean_loss(hidden, head, targets, liger=self.liger, smoothing=smoothing)

    def training_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        loss, count = self(**batch)
        return {"loss": loss, "weight": count}  # a mean over the tokens of answers

    def validation_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.training_step(batch)

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return configured(self, self.model, **self.hparams["optimization"])


def encode(encoding: Encoding, sample: Sample) -> list[Encoded]:
    """The rows of a sample that learn something."""
    return [one for one in encoding.rows(sample) if one.learns]


def built_in_samples() -> tuple[list[Conversation], list[Conversation]]:
    """``tiny_conversations``."""
    train, val = ([Conversation(one) for one in part] for part in tiny_conversations())
    return train, val


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    config.check("llm-finetune")
    if config.liger:
        require_packages("llm-finetune liger=true", "liger_kernel")
    return build_of(config, "llm-finetune", lambda: _made(config))


def build_of(config: Config, name: str, make_module: Callable[[], FineTune]) -> Experiment:
    """The same with another module.

    Args:
        config: Settings.
        name: Of the runs.
        make_module: The module.
    """
    if config.packing and config.group_by_length:
        raise PacelineError(
            "packed rows are all as long",
            code="recipe-settings",
            fix="group_by_length=false, or packing=false",
        )
    packed = config.length if config.packing else 0
    kind = Kind(
        Reading.sample,
        SAMPLES,
        encode,
        lambda one: [one],
        partial(Rows, length=packed),
        built_in_samples,
        lambda one: one,
    )
    experiment = build_experiment(
        config, name, kind, partial(collate, length=packed), lambda _: make_module(), monitor="val/loss"
    )
    if config.packing and config.quantized() is None and not shapes_alone():
        module: Any = experiment.module
        refuse_packing_where_rows_mix(module.model)
    return experiment


def _made(config: Config) -> FineTune:
    module = FineTune(config.model_arguments(), config.optimization(), config.label_smoothing, config.liger)
    if config.liger and (
        not module.able.split or type(module.model.get_output_embeddings()) is not nn.Linear
    ):
        raise PacelineError(
            f"the kernel of liger-kernel cannot compute the loss of a {type(module.model).__name__}: it "
            "scales or caps the logits of its head, has adapters there, or is loaded in 4 bits",
            code="recipe-settings",
            fix="liger=false",
        )
    return module
