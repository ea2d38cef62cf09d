"""Direct preference optimization of a causal language model of Hugging Face, against a frozen reference.

paceline fit dpo                              # a small random Llama learns to tell text from shuffled words
paceline fit dpo preset=lora model=FOLDER data=pairs.json
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from paceline import TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment
from paceline.recipes.data.conversations import encode_all, split_off
from paceline.recipes.data.hugging_face import ExportAtEnd, check_vocabulary
from paceline.recipes.data.preferences import (
    PairRows,
    collate_pairs,
    encode_pair,
    read_pairs,
    shuffled_pairs,
)
from paceline.recipes.language.models import load_causal_model, load_tokenizer
from paceline.recipes.language.optimization import configured
from paceline.recipes.language.settings import LanguageModelConfig, Part, Positive, Warmup
from paceline.recipes.networks.causal_lm import Abilities, abilities_of, hidden_and_head
from paceline.recipes.networks.head_loss import token_losses


class Config(LanguageModelConfig):
    """Settings of the recipe."""

    data: Path | None = None
    """JSON or JSON lines with ``chosen`` and ``rejected``; none: paragraphs, and their words shuffled."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The part of ``data`` to validate on."""
    length: PositiveInt = 128
    """The most tokens of a conversation; what is longer is cut off."""
    beta: Positive = 0.1
    """How closely the model is held to the reference."""
    batch_size: PositiveInt = 8
    """Pairs on each device."""
    epochs: PositiveInt = 1
    """Passes over the data."""
    learning_rate: Positive = 1e-3
    """The highest; ``scheduler`` says what follows."""
    warmup: Warmup = "10%"
    """How long the learning rate rises: a part of the run, epochs (``0.5ep``) or steps."""
    dropout: Part | None = 0.0
    """The rate of the dropout layers of model and reference; none: what they have."""


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


class DPO(TrainModule):
    """Trains a language model to prefer the chosen answers (Rafailov et al. 2023).

    The reference is the model as it was: a frozen copy, or under LoRA the base without its adapters. The
    method and its loss, equation 7: https://arxiv.org/abs/2305.18290

    Args:
        model: Arguments of ``load_causal_model``.
        optimization: Arguments of ``configured``.
        beta: How closely the model is held to the reference.
    """

    def __init__(self, model: dict[str, Any], optimization: dict[str, Any], beta: float = 0.1) -> None:
        super().__init__()
        self.model = load_causal_model(**model)
        plain = model.get("load_in_4bit") or model.get("attn_implementation")
        self.able = Abilities() if plain else abilities_of(self.model)
        self.reference = None
        if model["lora"] is None:
            self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()

    def training_step(self, batch: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
        chosen, rejected = self.log_probabilities(self.model, batch)
        with torch.no_grad():
            without = self.model.disable_adapter() if self.reference is None else nullcontext()
            with without:
                reference = self.log_probabilities(self.reference or self.model, batch)
        rewards = chosen - reference[0], rejected - reference[1]
        margin = self.hparams["beta"] * (rewards[0] - rewards[1])
        return {
            "loss": -F.logsigmoid(margin).mean(),
            "accuracy": (margin.detach() > 0).float().mean(),
            "margin": margin.detach().mean(),
        }

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        return self.training_step(batch)

    test_step = validation_step

    def log_probabilities(
        self, model: nn.Module, batch: dict[str, dict[str, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Of the chosen and the rejected answers, (pairs) each: sums over their tokens."""
        both = {
            name: torch.cat([batch["chosen"][name], batch["rejected"][name]]) for name in batch["chosen"]
        }
        targets = both.pop("targets")
        hidden, head = hidden_and_head(model, self.able, **both)
        chosen, rejected = token_losses(hidden, head, targets).sum(1).neg().chunk(2)
        return chosen, rejected

    def configure_optimizers(self) -> Any:
        return configured(self, self.model, **self.hparams["optimization"])


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    config.check("dpo")
    tokenizer = load_tokenizer(config)
    if config.data is None:
        parts = shuffled_pairs()
    else:
        parts = split_off(read_pairs(config.data), config.validation)
    train, val = (PairRows(encode_all(tokenizer, part, config.length, encode_pair)) for part in parts)
    trainer = config.make_trainer(
        name="dpo",
        max_epochs=config.epochs,
        clip_grad_norm=1.0,
        callbacks=[
            Checkpoint(monitor="val/accuracy"),
            *([ExportAtEnd(tokenizer)] if config.export else []),
        ],
    )
    if train.left_out or val.left_out:
        trainer.log_line(f"{train.left_out + val.left_out} pairs do not differ within their length")
    torch.manual_seed(trainer.settings.seed)
    module = DPO(config.model_arguments(), config.optimization(), config.beta)
    check_vocabulary(tokenizer, module.model, config.model)
    shared: dict[str, Any] = {
        "batch_size": config.batch_size,
        "num_workers": config.workers,
        "collate_fn": collate_pairs,
    }
    return Experiment(
        trainer,
        module,
        train=DataLoader(train, shuffle=True, **shared),
        val=DataLoader(val, **shared),
    )
