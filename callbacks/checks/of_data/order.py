"""Checks of the order of samples, and of the classes that training shows."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

from ..finding import Evidence, check
from ..seen import BatchFacts, Seen
from .data_sources import (
    is_in_order,
    is_shuffled,
    runs_of,
    targets_of,
    validations_of,
)


def _labels(batch: BatchFacts) -> list[int]:
    """The class labels of a batch; none where its targets are something else."""
    found = [
        one
        for one in batch.targets.values()
        if len(one.shape) == 1 and one.dtype in ("int64", "int32", "uint8", "int16", "int8")
    ]
    if len(found) != 1 or not (batch.targets_known or batch.tensors <= 2):
        return []
    return [int(value) for value in found[0].sample.tolist()]


@check("sorted-batches", at="steps")
def data_sorted_by_class(seen: Seen) -> Iterator[Evidence]:
    """The dataset is read in its order, and its labels, which a loss takes, are sorted."""
    loader = seen.data.get("train")
    known = any(one.targets_known for one in seen.batches.get("train", ()))
    if not known or not is_in_order(loader):
        return
    labels = targets_of(loader.dataset)  # type: ignore[union-attr]
    batch = loader.batch_size or 0  # type: ignore[union-attr]
    if labels is None or len(labels) < 4 * batch or batch < 2:
        return
    classes, runs = len(labels.unique()), runs_of(labels)
    if classes > 1 and runs <= 2 * classes and len(labels) / runs >= 2 * batch:
        yield Evidence(
            f"training data is sorted by class and not shuffled: {len(labels)} samples of {classes} "
            f"classes come in {runs} stretches",
            "DataLoader(..., shuffle=True)",
        )


def _single_class_batches(seen: Seen) -> Iterator[Evidence]:
    known = [one for one in seen.batches.get("train", ()) if one.targets_known]
    batches = [labels for one in known if len(labels := _labels(one)) >= 4]
    everything = Counter(label for labels in batches for label in labels)
    if len(batches) < 5 or len(everything) < 2 or set(everything) & {-1, -100}:
        return
    single = sum(len(set(labels)) == 1 for labels in batches)
    total = sum(everything.values())
    size = min(map(len, batches))
    mixed = sum((count / total) ** size for count in everything.values())
    first = [next(iter(labels)) for labels in batches if len(set(labels)) == 1]
    if single >= 0.7 * len(batches) and mixed < 0.02 and math.isfinite(mixed):
        changes = sum(a != b for a, b in itertools.pairwise(first))
        if changes <= len(first) / 2:
            yield Evidence(
                f"{single} of {len(batches)} training batches have samples of one class alone",
                "shuffle the training data",
            )


@check("sorted-batches", at="steps")
def batches_of_one_class(seen: Seen) -> Iterator[Evidence]:
    """Nearly every batch has one class, and neighbouring batches have the same."""
    yield from _single_class_batches(seen)


@check("no-shuffle", at="start")
def validation_shuffled_instead(seen: Seen) -> Iterator[Evidence]:
    """The validation loader shuffles and the training loader does not: they are exchanged."""
    loader = seen.data.get("train")
    several = is_in_order(loader) and len(loader) >= 4  # type: ignore[arg-type]
    if several and any(is_shuffled(one) for _, one in validations_of(seen)):
        yield Evidence(
            "validation data is shuffled, and training data is not", "shuffle=True for the training data"
        )


def _whole_epoch(seen: Seen) -> list[BatchFacts]:
    """The batches of the first epoch, where all of them were seen; else none."""
    batches = seen.batches.get("train", [])
    first = [one for one in batches if one.epoch == seen.first_epoch]
    complete = any(one.epoch > seen.first_epoch for one in batches) or seen.epoch_ended
    return first if complete and first and first[-1].step < 50 else []


def _classes_of_output(seen: Seen) -> int:
    losses = [one for one in seen.losses_in("train", "cross_entropy", "nll_loss") if one.target.from_batch]
    return min((one.output.shape[1] for one in losses if len(one.output.shape) == 2), default=0)


@check("missing-classes", at="validation")
def classes_that_training_never_shows(seen: Seen) -> Iterator[Evidence]:
    """Validation has classes of the model's outputs that a whole epoch of training has not."""
    classes, train = _classes_of_output(seen), _whole_epoch(seen)
    # One with a weight for each class has to learn it from samples; similarities to given vectors need not.
    learned = any(
        one.optimized and one.parameter.dim() > 1 and len(one.parameter) == classes
        for one in seen.parameters.values()
    )
    if not classes or not train or not learned:
        return
    shown = {label for one in train for label in _labels(one)}
    asked = Counter(label for one in seen.batches.get("val", ()) for label in _labels(one))
    missing = sorted(
        label for label, n in asked.items() if n >= 3 and 0 <= label < classes and label not in shown
    )
    if shown and missing and sum(asked[one] for one in missing) >= 0.02 * sum(asked.values()):
        yield Evidence(
            f"training has no sample of class {', '.join(map(str, missing[:4]))}, which validation has",
            "shuffle the data before it is split, and look at the labels of each part",
        )
