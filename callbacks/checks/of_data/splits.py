"""Checks of the parts of the data: samples in both, and parts that are prepared in other ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from ..finding import Evidence, check
from ..seen import BatchFacts, Seen, TensorFacts
from .data_sources import (
    shared_samples,
    size_of,
    sources_of,
    validations_of,
)

_APART = "split the data once, and give each part its own samples"
_FEWEST = 4


@check("split-overlap", at="start")
def samples_in_both_parts(seen: Seen) -> Iterator[Evidence]:
    """Indices of one dataset, or rows at one place of the memory, are in training and validation."""
    for name, loader in validations_of(seen):
        for part in sources_of(loader):
            total = len(part.indices)
            for other in sources_of(seen.data.get("train")):
                if part.base is other.base and not (part.chosen or other.chosen):
                    continue  # it may draw its samples: rows tell
                shared = shared_samples(other, part) if total >= _FEWEST else 0
                if shared:
                    yield Evidence(
                        f"{shared} of the {total} samples of {name} are training data too", _APART
                    )
                    break


def _is_float(facts: TensorFacts) -> bool:
    return facts.dtype.startswith(("float", "bfloat"))


def _rows(batches: list[BatchFacts]) -> list[int]:
    return [row for batch in batches for row in batch.rows]


@check("split-overlap", at="validation")
def equal_rows_in_both_parts(seen: Seen) -> Iterator[Evidence]:
    """Samples of validation are equal to samples of training, more often than those to each other."""
    if not any(True for _ in validations_of(seen)) or len(list(validations_of(seen))) < len(seen.data) - 1:
        return
    batches = [one for one in seen.batches.get("train", ()) if one.epoch == seen.first_epoch]
    train, held_out = _rows(batches), _rows(seen.batches.get("val", []))
    if len(train) < 2 * _FEWEST or len(held_out) < _FEWEST or _have_masks(batches):
        return
    count = Counter(train)
    found = sum(row in count for row in held_out)
    # The share that would be found if training had all of them: only some of its batches were seen.
    all_of_it = size_of(getattr(seen.data["train"], "dataset", None)) or len(train)
    covered = min(1.0, len(count) / max(1, all_of_it))
    pairs = sum(n * (n - 1) for n in count.values()) / (len(train) * (len(train) - 1))
    by_chance = len(held_out) * min(1.0, pairs * len(train))
    if len(batches) == 1 == len(seen.batches["val"]) and train == held_out:
        return  # one graph or table, of which each step knows its own rows
    exact = all(batch.distinct for batch in batches)
    enough = found >= max(3, 0.05 * covered * len(held_out))
    if enough and (found > 5 * by_chance + 3 or (exact and found > 0.2 * covered * len(held_out))):
        yield Evidence(
            f"{found} of {len(held_out)} samples of validation are equal to training data", _APART
        )


def _have_masks(batches: list[BatchFacts]) -> bool:
    """Whether batches say themselves which of their rows count, as those of one graph do."""
    places = [
        (place, one) for batch in batches[:3] for place, one in (batch.inputs | batch.targets).items()
    ]
    return any(one.dtype == "bool" or "mask" in place.lower() for place, one in places)


def _pairs(seen: Seen) -> Iterator[tuple[str, TensorFacts, TensorFacts]]:
    """Inputs of the first batches of training and validation at one place, of rows of one shape."""
    train, held_out = (seen.batches.get(phase, []) for phase in ("train", "val"))  # type: ignore[call-overload]
    if train and held_out:
        for place, facts in train[0].inputs.items():
            other = held_out[0].inputs.get(place)
            if other is not None and _is_float(facts) and facts.shape[1:] == other.shape[1:]:
                yield place, facts, other


@check("split-shift", at="validation")
def other_scale_in_validation(seen: Seen) -> Iterator[Evidence]:
    """Inputs of validation are many times as large or small as those of training."""
    for place, facts, other in _pairs(seen):
        if len(facts.shape) < 2 or min(facts.std, other.std) <= 0:
            continue
        factor = max(facts.std / other.std, other.std / facts.std)
        if factor > 20:
            yield Evidence(
                f"input {place} has a deviation of {facts.std:.2g} and a mean of {facts.mean:.2g} in "
                f"training, {other.std:.2g} and {other.mean:.2g} in validation",
                "prepare both parts in the same way",
            )


@check("split-shift", at="start")
def parts_standardised_apart(seen: Seen) -> Iterator[Evidence]:
    """Columns of training and of validation have each a mean of 0 and a deviation of 1, exactly."""
    tables = [
        loader.dataset.tensors[0]
        for loader in seen.data.values()
        if isinstance(getattr(loader, "dataset", None), TensorDataset)
    ]
    if len(tables) >= 2 and all(map(_is_standard_by_itself, tables[:2])):
        yield Evidence(
            "training and validation are each standardised by their own mean and deviation",
            "standardise validation by the mean and deviation of training",
        )


def _is_standard_by_itself(table: Tensor) -> bool:
    if table.dim() != 2 or table.numel() > 1_000_000 or len(table) < 20 or table.dtype not in _EXACT:
        return False
    if table.shape[1] < 2 or table.device.type != "cpu":
        return False
    spread = [table.std(0, correction=n) for n in (0, 1)]
    exact = any(bool(((one - 1).abs() < 2e-5).all()) for one in spread)
    return exact and bool((table.mean(0).abs() < 2e-5).all())


_EXACT = (torch.float32, torch.float64)


@check("split-shift", at="validation")
def words_numbered_by_themselves(seen: Seen) -> Iterator[Evidence]:
    """Tokens of validation are numbered in the order in which they come there."""
    batch = (seen.batches.get("val") or [_NO_BATCH])[0]
    rows = len(batch.rows)
    for place, facts in batch.inputs.items():
        whole = facts.dtype.startswith(("int", "uint"))
        if len(facts.shape) != 2 or not whole or not 8 <= facts.shape[0] == rows:
            continue
        tokens = facts.sample.tolist()
        first = list(dict.fromkeys(tokens))
        rising = all(b == a + 1 for a, b in pairwise(first))
        before_last = tokens.index(first[-1]) if first else 0
        if len(first) >= 20 and rising and before_last - len(first) >= 5:
            yield Evidence(
                f"tokens of validation ({place}) are numbered in the order in which they come there",
                "use the vocabulary of the training part",
            )


_NO_BATCH = BatchFacts(0, {}, {}, [])
