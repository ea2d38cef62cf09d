"""Validation once more: twice in a row, and in batches of another size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.of_measurement import HIGH, words_of
from ...trainer.rng import seeded
from ...trainer.trainer import Trainer
from .not_here import NotHere
from .probe import probe
from .subject import Subject
from .trials import ALONE, QUIET

_BATCHES = 50
_NO_MEANS: tuple[str, ...] = (
    "f1",
    "auc",
    "auroc",
    "rmse",
    "perplexity",
    "ppl",
    "r2",
    "precision",
    "recall",
    "corr",
    "mcc",
    "kappa",
)
_NO_MEANS += (
    "fbeta",
    "pearson",
    "spearman",
    "psnr",
    "map",
    "average_precision",
    "balanced",
    "iou",
    "dice",
    "std",
)


def validated(subject: Subject, module: Any, loader: Any) -> dict[str, float]:
    """One validation pass; nothing is written, and draws are the same in each."""
    kept = {name: getattr(subject.trainer.settings, name) for name in ("accelerator", "precision")}
    short = {"seed": 0, "limit_val_batches": _BATCHES, "callbacks": [], "run_dir": None}
    trainer = Trainer(**QUIET | ALONE | kept | short)
    with seeded(9, module.device):
        return trainer.validate(module, loader)


def _val_loader(subject: Subject) -> Any:
    from ...trainer.module import is_overridden

    loader = subject.val_loader
    if loader is None:
        raise NotHere("there is no validation data")
    if isinstance(loader, Iterator):
        raise LookupError("the validation data can be read once only")
    if not is_overridden(subject.module, "validation_step"):
        raise NotHere("there is no validation_step")
    return loader


def _differ(one: float, other: float, share: float = 1e-4) -> bool:
    return not math.isclose(one, other, rel_tol=share, abs_tol=1e-6) and math.isfinite(one + other)


@probe("metric-not-reset")
def validations_in_a_row(subject: Subject) -> Iterator[Evidence]:
    """A second validation of the same weights gives another value, and a fresh copy gives the first one."""
    loader = _val_loader(subject)
    module = subject.copy()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    first, second = (validated(subject, module, loader) for _ in range(2))
    moved = any(not torch.equal(t, before[n]) for n, t in module.state_dict().items() if n in before)
    if moved:
        return
    again = validated(subject, subject.copy(), loader)
    for name, value in first.items():
        if _differ(value, second.get(name, value)) and not _differ(value, again.get(name, value)):
            yield Evidence(
                f"{name} is {value:.4g} at first, then {second[name]:.4g} with equal weights",
                "reset what is counted at the start of each validation",
            )


@probe("batch-means")
def validation_in_other_batches(subject: Subject) -> Iterator[Evidence]:
    """A metric that is no mean over samples depends on the size of batches."""
    loader = _val_loader(subject)
    if not isinstance(loader, DataLoader) or type(loader.batch_sampler) is not BatchSampler:
        return
    size = loader.batch_size or 0
    rows = len(loader.sampler) if isinstance(loader.sampler, Sized) else 0
    other = max(2, size // 3) if size >= 4 else size * 3
    if (
        rows < 16
        or rows <= size
        or other == size
        or rows / other > _BATCHES
        or rows / max(1, size) > _BATCHES
    ):
        return
    first = validated(subject, subject.copy(), loader)
    named = {name: value for name, value in first.items() if _is_no_mean(name)}
    if not named:
        return
    same = DataLoader(loader.dataset, size, sampler=loader.sampler, collate_fn=loader.collate_fn)
    again = validated(subject, subject.copy(), same)
    small = DataLoader(loader.dataset, other, sampler=loader.sampler, collate_fn=loader.collate_fn)
    found = validated(subject, subject.copy(), small)
    losses = [n for n in first if "loss" in n and not _is_no_mean(n)]
    if any(_differ(first[n], found.get(n, first[n]), 0.02) for n in losses):
        return  # of losses within a batch, or of random draws
    for name, value in named.items():
        share = 3e-4 if {"perplexity", "ppl"} & set(words_of(name)) else 3e-3
        if _differ(value, found.get(name, value), share) and not _differ(value, again.get(name, value)):
            yield Evidence(
                f"{name} is {value:.4g} in batches of {size}, {found[name]:.4g} in batches of {other}: the "
                "mean over batches is not its value",
                "gather what it is made of over the whole validation, as a torchmetrics object does",
            )


@probe("monitor-direction")
def loss_that_is_a_score(subject: Subject) -> Iterator[Evidence]:
    """A value is called a loss and named as a score, and the lowest is taken for the best."""
    for who, name, mode in subject.seen.monitors:
        words = set(words_of(name.rpartition("/")[2]))
        if mode == "min" and words & HIGH and "loss" in words:
            yield Evidence(
                f"{who} takes a low {name} for better, but a high {sorted(words & HIGH)[0]} is",
                'mode="max", unless it is 1 minus that',
            )


def _is_no_mean(name: str) -> bool:
    plain = name.rpartition("/")[2].lower()
    words = plain.replace("-", "_").split("_")
    return any(word in words or (len(word) > 3 and word in plain) for word in _NO_MEANS)
