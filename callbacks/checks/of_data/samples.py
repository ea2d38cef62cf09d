"""Checks of samples: those that repeat, are left out, or are augmented alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..finding import Evidence, check
from ..seen import Seen
from .code_facts import constant_seeds, draws_random_numbers, methods_behind
from .data_sources import shared_samples, size_of, sources_of

_PARTS = 16


def _base(dataset: Any) -> Any:
    for _ in range(8):
        inner = getattr(dataset, "dataset", None)
        if inner is None or not hasattr(dataset, "indices"):
            break
        dataset = inner
    return dataset


def _first_epoch(seen: Seen) -> list[int]:
    batches = [one for one in seen.batches.get("train", []) if one.epoch == seen.first_epoch]
    return [row for one in batches for row in one.rows]


@check("repeated-samples", at="steps")
def stream_read_by_each_worker(seen: Seen) -> Iterator[Evidence]:
    """A stream gives each sample as often in an epoch as there are workers."""
    loader = seen.data.get("train")
    if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, IterableDataset):
        return
    count = Counter(_first_epoch(seen))
    whole = seen.epoch_ended and seen.step < 50
    if loader.num_workers < 2 or not whole or len(count) < 8:
        return
    if all(number == loader.num_workers for number in count.values()):
        yield Evidence(
            f"each of the {loader.num_workers} workers reads all of the stream: each sample comes "
            f"{loader.num_workers} times in an epoch",
            "let each worker read its own part, by torch.utils.data.get_worker_info()",
        )


@check("repeated-samples", at="start")
def tables_that_overlap(seen: Seen) -> Iterator[Evidence]:
    """Tables that are put together have rows of one place of the memory, and are not one table twice."""
    parts = sources_of(seen.data.get("train"))[:_PARTS]
    for number, one in enumerate(parts):
        for other in parts[number + 1 :]:
            shared = 0 if one.base is other.base else shared_samples(one, other)
            if shared and {len(one.base), len(other.base)} != {shared}:
                yield Evidence(
                    f"two of the datasets that are put together for training share {shared} rows",
                    "let each have its own rows",
                )
                return


@check("dropped-samples", at="start")
def last_batch_is_a_large_part(seen: Seen) -> Iterator[Evidence]:
    """``drop_last`` leaves a large part of each epoch out."""
    loader = seen.data.get("train")
    yield from _dropped(loader, 0.4)


def _dropped(loader: Any, part: float) -> Iterator[Evidence]:
    if not isinstance(loader, DataLoader) or type(loader.batch_sampler) is not BatchSampler:
        return
    samples, batch = size_of(loader.sampler), loader.batch_size or 0
    if loader.drop_last and samples and samples >= batch and samples % batch > part * samples:
        yield Evidence(
            f"drop_last leaves {samples % batch} of {samples} samples out of each epoch",
            "leave drop_last out, or take smaller batches",
        )


@check("repeated-augmentation", at="start")
def seed_in_each_sample(seen: Seen) -> Iterator[Evidence]:
    """The code that reads a sample or starts a worker has a fixed seed."""
    loader = seen.data.get("train")
    if not isinstance(loader, DataLoader):
        return
    for name, function in methods_behind(_base(loader.dataset), "__getitem__"):
        for seeder, number in constant_seeds(function, of_all=True):
            yield Evidence(
                f"{name} calls {seeder}({number}) for each sample, so that all are augmented alike",
                "leave the seed out: the Trainer seeds each sample",
            )
    start = loader.worker_init_fn
    if start is not None and loader.num_workers > 1:
        for seeder, number in constant_seeds(start):
            yield Evidence(
                f"worker_init_fn calls {seeder}({number}) in each worker, so that all draw alike",
                "leave it out: the Trainer seeds each sample",
            )


@check("repeated-augmentation", at="steps")
def two_views_are_equal(seen: Seen) -> Iterator[Evidence]:
    """Two inputs of each batch are equal, and the first layer is called with each of them."""
    batches = [one for one in seen.batches.get("train", []) if one.inputs]
    first = min(
        (one for one in seen.layers.values() if one.order >= 0 and one.first_input is not None),
        key=lambda one: one.order,
        default=None,
    )
    watched = len(seen.watched)
    if len(batches) < 3 or first is None or first.calls.get("train", 0) != 2 * watched:
        return
    if any(one.target.from_batch for one in seen.losses_in("train")):
        return
    for one in batches:
        tensors = [facts for facts in (one.inputs | one.targets).values() if len(facts.shape) > 1]
        if len(tensors) != 2 or tensors[0].shape != tensors[1].shape or tensors[0].std == 0:
            return
        if not torch.equal(tensors[0].sample, tensors[1].sample) or tensors[0].dtype != tensors[1].dtype:
            return
    yield Evidence(
        "both views of each sample are equal, although both go through the same layers",
        "draw the augmentation of each view by itself",
    )


@check("augmented-validation", at="validation")
def one_transform_for_both(seen: Seen) -> Iterator[Evidence]:
    """Validation of a classifier augments samples by the very function that training does."""
    losses = list(seen.losses_in("train", "cross_entropy", "nll_loss"))
    if not losses or not all(one.target.from_batch and len(one.target.shape) == 1 for one in losses):
        return
    own = {id(one) for _, one in _augmentations(seen.data.get("train"))}
    for name, loader in seen.data.items():
        shared = [place for place, one in _augmentations(loader) if id(one) in own]
        if name != "train" and "train" not in name.lower() and shared:
            yield Evidence(
                f"{name} is augmented at random by {shared[0]}, as training is",
                "give validation a dataset without the augmentation",
            )


def _augmentations(loader: Any) -> list[tuple[str, Any]]:
    """What a dataset holds under the name of a transform, and draws random numbers."""
    held = getattr(_base(getattr(loader, "dataset", None)), "__dict__", {})
    found = []
    for name, one in held.items():
        function = one if isinstance(one, FunctionType) else vars(type(one)).get("__call__")
        if ("transform" in name or "aug" in name) and function and draws_random_numbers(function):
            found.append((name, one))
    return found
