"""What the recipes of language models build of their settings, their rows and their module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from paceline import TrainModule
from paceline.callbacks import Checkpoint
from paceline.config import Experiment
from paceline.recipes.data.hugging_face import ExportAtEnd, check_vocabulary
from paceline.recipes.language.settings import LanguageModelConfig


def build_experiment(
    config: LanguageModelConfig,
    name: str,
    tokenizer: Any,
    rows: tuple[Any, Any],
    collate: Callable[[Any], Any],
    make_module: Callable[[], TrainModule],
    monitor: str,
    left_out: str,
) -> Experiment:
    """The Trainer, the module and its data.

    Args:
        config: The recipe's settings.
        name: Of its runs.
        tokenizer: The model's.
        rows: Datasets to train and to validate on; their ``left_out`` counts what is in no row.
        collate: Makes a batch of rows.
        make_module: The module, with its language model in ``model``; its weights are drawn by the seed.
        monitor: What the best checkpoint is chosen by.
        left_out: What was left out, and why, after its number.
    """
    train, val = rows
    trainer = config.make_trainer(
        name=name,
        max_epochs=config.epochs,
        clip_grad_norm=1.0,
        callbacks=[Checkpoint(monitor=monitor), *([ExportAtEnd(tokenizer)] if config.export else [])],
    )
    if train.left_out or val.left_out:
        trainer.log_line(f"{train.left_out + val.left_out} {left_out}")
    torch.manual_seed(trainer.settings.seed)
    module: Any = make_module()
    check_vocabulary(tokenizer, module.model, config.model)
    shared: dict[str, Any] = {
        "batch_size": config.batch_size,
        "num_workers": config.workers,
        "collate_fn": collate,
    }
    return Experiment(
        trainer, module, train=DataLoader(train, shuffle=True, **shared), val=DataLoader(val, **shared)
    )
