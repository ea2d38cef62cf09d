"""A language model of the GPT kind, from scratch: packed documents, Muon, and bits per byte.

paceline fit gpt                              # on English that Python carries: a minute on a CPU
paceline fit gpt preset=small                 # the same text with a larger model, in minutes
paceline fit gpt preset=gpt2 data=FOLDER      # GPT-2's size on GPUs, from train.bin and val.bin
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.utils.data import DataLoader

from paceline import TrainModule
from paceline.callbacks import Checkpoint, Curves
from paceline.config import Experiment, RunConfig
from paceline.optimizers import MuonWithAdamW, has_fused_kernels
from paceline.recipes.data.hugging_face import require_packages
from paceline.recipes.data.text import PackedText, collate_packed, english, read_tokens
from paceline.recipes.data.tiny_models import no_folder_too
from paceline.recipes.networks.decoder import Decoder
from paceline.recipes.networks.head_loss import mean_loss
from paceline.schedules import WSD, Cosine

Part = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Model(BaseModel):
    """Arguments of ``Decoder``."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    width: PositiveInt = 128
    """Numbers in a token; a multiple of ``2 * heads``."""
    depth: PositiveInt = 4
    """Blocks."""
    heads: PositiveInt = 4
    """Attention heads in a block."""
    dropout: Part = 0.0
    """Rate of dropout after attention and after the MLP."""


class Config(RunConfig):
    """Settings of the recipe."""

    data: Annotated[Literal["english"] | Path, BeforeValidator(no_folder_too)] = "english"
    """A folder with ``train.bin`` and ``val.bin``, or the text that Python carries."""
    model: Model = Model()
    """The decoder."""
    length: PositiveInt = 128
    """Tokens in a row."""
    shift: bool = True
    """Begin rows at other places in each epoch: for a text that is read often."""
    separate: bool = True
    """No token sees another document than its own."""
    liger: bool = False
    """Compute the loss by the kernel of liger-kernel, on GPUs."""
    batch_size: PositiveInt = 16
    """Rows on each device."""
    steps: PositiveInt = 400
    """Optimizer steps."""
    workers: NonNegativeInt = 0
    """Processes that read, for each rank."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """Muon for hidden matrices and AdamW for the rest, or AdamW for all."""
    learning_rate: PositiveAmount = 3e-3
    """The highest of AdamW."""
    muon_rate: PositiveAmount = 0.02
    """The highest of Muon."""
    muon_dtype: Literal["float32", "bfloat16"] = "float32"
    """What Muon computes in; bfloat16 is faster on GPUs, and rounds otherwise on other numbers of ranks."""
    weight_decay: Amount = 0.1
    """Of both; norms have none under Muon."""
    schedule: Literal["wsd", "cosine"] = "wsd"
    """Of the rates: stable, then linearly to 0, or a cosine."""
    warmup: Annotated[str, Field(pattern=r"^\d+(\.\d+)?%$")] = "2%"
    """The part of the run in which the rates rise."""
    decay: Annotated[str, Field(pattern=r"^\d+(\.\d+)?%$")] = "60%"
    """The last part of the run, in which they fall under ``wsd``."""


PRESETS: dict[str, dict[str, Any]] = {
    "small": {"model": {"width": 256, "depth": 6, "dropout": 0.1}, "steps": 1500},
    "gpt2": {  # 0.5 million tokens a step
        "model": {"width": 768, "depth": 12, "heads": 6},
        "length": 1024,
        "shift": False,
        "batch_size": 32,
        "steps": 3250,
        "workers": 4,
        "muon_dtype": "bfloat16",
        "trainer": {"precision": "bf16", "compile": True, "global_batch_size": 512},
    },
}


class GPT(TrainModule):
    """Trains a ``Decoder`` to predict the next token.

    Args:
        model: Arguments of ``Decoder``.
        separate: Keep the documents of a row apart.
        bytes_per_token: Of the text to validate on, for bits per byte.
        end: The token before each document.
        liger: Compute the loss by the kernel of liger-kernel.
    """

    def __init__(
        self,
        model: dict[str, Any],
        separate: bool = True,
        optimizer: str = "muon",
        learning_rate: float = 3e-3,
        muon_rate: float = 0.02,
        muon_dtype: str = "float32",
        weight_decay: float = 0.1,
        schedule: str = "wsd",
        warmup: str = "2%",
        decay: str = "60%",
        bytes_per_token: float | None = None,
        end: int = 0,
        liger: bool = False,
    ) -> None:
        super().__init__()
        self.model = Decoder(**model)

    def forward(self, tokens: Tensor, starts: Tensor | None = None, targets: Tensor | None = None) -> Any:
        """Logits; or with targets the mean loss, and over how many tokens."""
        if targets is None:
            return self.model(tokens, starts)
        return mean_loss(
            self.model.hidden(tokens, starts), self.model.head, targets, liger=self.hparams["liger"]
        )

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        tokens, targets, starts = batch
        loss, count = self(tokens, starts if self.hparams["separate"] else None, targets)
        return {"loss": loss, "weight": count}  # a mean over tokens, on any number of ranks

    def validation_step(self, batch: Any) -> dict[str, Tensor]:
        found = self.training_step(batch)
        per_token = self.hparams["bytes_per_token"]
        if per_token is not None:
            found["bits_per_byte"] = found["loss"] / math.log(2) / per_token
        return found

    test_step = validation_step

    @torch.no_grad()
    def generate(self, tokens: list[int], count: int, temperature: float = 0.8) -> list[int]:
        """Continue a document by up to ``count`` tokens, drawn one by one; it may end before that."""
        end, row = self.hparams["end"], [self.hparams["end"], *tokens]
        for _ in range(count):
            logits = self(torch.tensor([row], device=self.device))[0, -1].float()
            token = int(torch.multinomial((logits / temperature).softmax(0), 1))
            if token == end:
                break
            row.append(token)
        return row[1:]

    def configure_optimizers(self) -> Any:
        settings = self.hparams
        rate, decay = settings["learning_rate"], settings["weight_decay"]
        fused = has_fused_kernels(self.device) or None
        shared: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": decay, "fused": fused}
        optimizer: torch.optim.Optimizer
        if settings["optimizer"] == "muon":
            optimizer = MuonWithAdamW(
                self,
                lr=rate,
                muon_lr=settings["muon_rate"],
                orthogonalisation_dtype=settings["muon_dtype"],
                **shared,
            )
        else:
            optimizer = torch.optim.AdamW(self.parameters(), rate, **shared)
        warmup = settings["warmup"]
        wsd = settings["schedule"] == "wsd"
        schedule = WSD(warmup=warmup, decay=settings["decay"]) if wsd else Cosine(warmup=warmup)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def build(config: Config) -> Experiment:
    """The Trainer, the module and its data."""
    if config.liger:
        require_packages("gpt liger=true", "liger_kernel")
    corpus = english() if config.data == "english" else read_tokens(Path(config.data))
    monitor = "val/loss" if corpus.bytes_per_token is None else "val/bits_per_byte"
    trainer = config.make_trainer(
        name="gpt",
        max_steps=config.steps,
        validate_every=f"{max(1, config.steps // 10)}st",
        callbacks=[Checkpoint(monitor=monitor, mode="min"), Curves()],
    )
    trainer.log_line(corpus.about)
    torch.manual_seed(trainer.settings.seed)
    rates = {"optimizer", "learning_rate", "weight_decay", "schedule", "warmup", "decay"}
    module = GPT(
        config.model.model_dump() | {"vocabulary": corpus.vocabulary},
        **config.model_dump(include=rates | {"muon_rate", "muon_dtype", "separate", "liger"}),
        bytes_per_token=corpus.bytes_per_token,
        end=corpus.end,
    )
    shared: dict[str, Any] = {
        "batch_size": config.batch_size,
        "num_workers": config.workers,
        "collate_fn": collate_packed,
    }
    return Experiment(
        trainer,
        module,
        train=DataLoader(
            PackedText(corpus.train, config.length, corpus.end, config.shift), shuffle=True, **shared
        ),
        val=DataLoader(PackedText(corpus.val, config.length, corpus.end), **shared),
    )
