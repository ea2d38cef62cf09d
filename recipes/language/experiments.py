"""What the recipes of language models build of their settings, their data and their module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from paceline import Mixture, PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.config import Experiment
from paceline.recipes.data.hugging_face import ExportAtEnd, check_vocabulary
from paceline.recipes.language.data.loading import Kind, Part, load_parts
from paceline.recipes.language.data.preview import preview
from paceline.recipes.language.data.rows import GroupedByLength
from paceline.recipes.language.data.templates import Encoding
from paceline.recipes.language.models import load_tokenizer
from paceline.recipes.language.samples import SampleAnswers, questions_of
from paceline.recipes.language.settings import LanguageModelConfig


def build_experiment(
    config: LanguageModelConfig,
    name: str,
    kind: Kind[Any, Any],
    collate: Callable[[Any], Any],
    make_module: Callable[[Any], TrainModule],
    monitor: str,
) -> Experiment:
    """The Trainer, the module and its data.

    Args:
        config: The recipe's settings.
        name: Of its runs.
        kind: What it trains on.
        collate: Makes a batch of rows.
        make_module: Makes the module of the tokenizer, with its language model in ``model``; its weights
            are drawn by the seed.
        monitor: What the best checkpoint is chosen by.

    Raises:
        SystemExit: after a preview.
    """
    tokenizer = load_tokenizer(config)
    encoding = Encoding(tokenizer, config.length, getattr(config, "train_on", "answers"), config.too_long)
    train, val = load_parts(config, encoding, kind, getattr(config, "streaming", False))
    checkpoint = Checkpoint(monitor=monitor) if val is not None else Checkpoint()
    trainer = config.make_trainer(
        name=name,
        max_epochs=config.epochs,
        clip_grad_norm=1.0,
        callbacks=[checkpoint, *at_times(config, tokenizer)],
    )
    report(trainer, config, tokenizer, train, val)
    torch.manual_seed(trainer.settings.seed)
    module: Any = make_module(tokenizer)
    check_vocabulary(tokenizer, module.model, config.model)
    shared: dict[str, Any] = {
        "batch_size": config.batch_size,
        "num_workers": config.workers,
        "collate_fn": collate,
    }
    return Experiment(
        trainer,
        module,
        train=DataLoader(train.rows, **order(config, train.rows), **shared),
        val=None if val is None else DataLoader(val.rows, **shared),
    )


def at_times(config: LanguageModelConfig, tokenizer: Any) -> list[Callback]:
    """Samples during training, and the export at its end."""
    questions = questions_of(config.samples)
    samples = SampleAnswers(tokenizer, questions, config.samples_every, system=config.system)
    return [
        *([samples] if questions else []),
        *([ExportAtEnd(tokenizer, config.export_merged)] if config.export else []),
    ]


def report(
    trainer: Trainer, config: LanguageModelConfig, tokenizer: Any, train: Part, val: Part | None
) -> None:
    """Say what is dropped and cut off, or show samples, and end."""
    parts = {"train": train, "val": val}
    if config.preview:
        trainer.log_line(preview(tokenizer, train.first, config.preview, train.counts))
        raise SystemExit(0)
    for name, part in parts.items():
        if part is not None and config.data is not None:
            trainer.log_line(f"{name}: {part.counts}")


def order(config: LanguageModelConfig, rows: Any) -> dict[str, Any]:
    """Arguments of the training DataLoader that say in which order rows are read.

    Raises:
        PacelineError: for settings that do not go together.
    """
    if isinstance(rows, Mixture):
        if config.group_by_length or not config.shuffle:
            raise PacelineError(
                "sources with weights are mixed in an order that is drawn",
                fix="no weight; or shuffle=true and group_by_length=false",
            )
        return {}
    if config.group_by_length:
        return {"sampler": GroupedByLength(rows.sizes, config.batch_size)}
    return {"shuffle": config.shuffle}
