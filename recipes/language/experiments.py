"""What the recipes of language models build of their settings, their data and their module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler

from paceline import Mixture, PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.config import Experiment, shapes_alone
from paceline.recipes.data.hugging_face import TINY, ExportAtEnd, check_vocabulary
from paceline.recipes.language.data.labelled import InSteps, WithOthers
from paceline.recipes.language.data.loading import Kind, Part, load_parts
from paceline.recipes.language.data.preview import preview
from paceline.recipes.language.data.rows import GroupedByLength
from paceline.recipes.language.data.templates import Encoding
from paceline.recipes.language.models import load_tokenizer
from paceline.recipes.language.samples import SampleAnswers, questions_of
from paceline.recipes.language.settings import LanguageModelConfig
from paceline.recipes.language.shapes import any_row


def build_experiment(
    config: LanguageModelConfig,
    name: str,
    kind: Kind[Any, Any],
    collate: Callable[[Any], Any],
    make_module: Callable[[Any], TrainModule],
    monitor: str,
    compares: bool = False,
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
        compares: Whether each answer comes with another one of its optimizer step.

    Raises:
        SystemExit: after a preview.
    """
    if shapes_alone() and config.model != TINY:
        return shapes_of(config, name, kind, collate, make_module, compares)
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
    samples = samples_of_step(trainer, config.batch_size)
    read: Sampler[Any] = order(config, train.rows, samples)
    rows: list[Any] = [None if part is None else part.rows for part in (train, val)]
    if compares:
        if samples < 2:
            raise PacelineError(
                f"{name} compares answers of an optimizer step",
                code="recipe-settings",
                got="one",
                fix="batch_size=2",
            )
        read, rows = InSteps(read, samples), [None if one is None else WithOthers(one) for one in rows]
    return Experiment(
        trainer,
        module,
        train=DataLoader(rows[0], sampler=read, **shared),
        val=None if val is None else DataLoader(rows[1], **shared),
    )


def at_times(config: LanguageModelConfig, tokenizer: Any) -> list[Callback]:
    """Samples during training, and the export at its end."""
    questions = questions_of(config.samples)
    samples = SampleAnswers(tokenizer, questions, config.samples_every, system=config.system)
    return [
        *([samples] if questions else []),
        *([ExportAtEnd(tokenizer, config.export_merged)] if config.export else []),
    ]


def shapes_of(
    config: LanguageModelConfig,
    name: str,
    kind: Kind[Any, Any],
    collate: Callable[[Any], Any],
    make_module: Callable[[Any], TrainModule],
    compares: bool = False,
) -> Experiment:
    """The same without weights, tokenizer and data, with a batch of rows that are as long as they may be.

    Arguments as of ``build_experiment``.
    """
    trainer = config.make_trainer(name=name, max_epochs=config.epochs, clip_grad_norm=1.0)
    rows = kind.rows([kind.of_tokens(any_row(config.length))] * config.batch_size)
    rows = WithOthers(rows) if compares else rows
    batch = collate([rows[number] for number in range(len(rows))])
    return Experiment(trainer, make_module(_NoTokenizer()), train=[batch])


class _NoTokenizer:
    """What a module is made with where there is none."""

    pad_token_id = eos_token_id = 0


def samples_of_step(trainer: Trainer, batch_size: int) -> int:
    """How many samples an optimizer step takes, over all ranks and micro-batches."""
    settings = trainer.settings
    own = batch_size * settings.accumulate * trainer.ranks.data_world_size
    return settings.global_batch_size or own


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


def order(config: LanguageModelConfig, rows: Any, samples: int) -> Sampler[int]:
    """In which order rows are read to be trained on.

    Args:
        config: The recipe's settings.
        rows: A dataset.
        samples: In an optimizer step: rows of about the same length come together in one, so that the order
            does not depend on how many devices share it.

    Raises:
        PacelineError: for settings that do not go together.
    """
    if isinstance(rows, Mixture):
        if config.group_by_length or not config.shuffle:
            raise PacelineError(
                "sources with weights are mixed in an order that is drawn",
                code="recipe-settings",
                fix="no weight; or shuffle=true and group_by_length=false",
            )
        return SequentialSampler(rows)
    if config.group_by_length:
        return GroupedByLength(rows.sizes, samples)
    return RandomSampler(rows) if config.shuffle else SequentialSampler(rows)
