"""The parts of the data: whether they are apart, and prepared alike."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.tensor_facts import checksums_of_rows, tensors_in
from ...trainer.rng import seeded
from .of_samples import keys_of, tells_rows_apart
from .probe import probe
from .subject import Subject, parts_of
from .tables import is_whole_type

_TRANSFORMS = ("transform", "transforms", "augment", "augmentation", "augmentations")
_CPU = torch.device("cpu")


@probe("split-overlap")
def samples_of_both_parts(subject: Subject) -> Iterator[Evidence]:
    """Samples of the validation set are in the training set too, as they are or before augmentation."""
    if subject.trainer.settings.overfit_batches:
        return
    for name, train, val in _both_read(subject):
        rich = [one for one in val if any(tells_rows_apart(part) for part in one.values())]
        if len(rich) < 8 or not train:
            continue
        known = {keys_of(one) for one in train}
        shared = sum(keys_of(one) in known for one in rich)
        if shared > 0.05 * len(rich):
            yield Evidence(
                f"{shared} of {len(rich)} validation samples are training samples too{name}",
                "split the data once, before copies are made, and give each part its own samples",
            )
            return


def _both_read(subject: Subject) -> Iterator[tuple[str, list[dict[str, Tensor]], list[dict[str, Tensor]]]]:
    train = [one for _, one in subject.samples("train")]
    val = [one for _, one in subject.samples("val")]
    yield "", train, val
    sets = subject.dataset("train"), subject.dataset("val")
    if None not in sets and any(_transforms_of(one) for one in sets):
        with _without_transforms(*sets):
            train, val = ([one for _, one in subject.read_again(name)] for name in ("train", "val"))
        yield " before their transforms", train, val


def _transforms_of(dataset: Any) -> list[tuple[Any, str]]:
    """Where a data set, and those inside of it, keep their transforms."""
    found = (
        [(dataset, n) for n in _TRANSFORMS if vars(dataset).get(n) is not None]
        if _has_vars(dataset)
        else []
    )
    inner = [dataset.dataset] if isinstance(dataset, Subset) else []
    inner += dataset.datasets if isinstance(dataset, ConcatDataset) else []
    return found + [one for each in inner for one in _transforms_of(each)]


def _has_vars(thing: Any) -> bool:
    return hasattr(thing, "__dict__")


def _as_it_is(sample: Any, *others: Any) -> Any:
    return (sample, *others) if others else sample


@contextmanager
def _without_transforms(*datasets: Any) -> Iterator[None]:
    places = [place for one in datasets for place in _transforms_of(one)]
    kept = [(owner, name, vars(owner)[name]) for owner, name in places]
    for owner, name in places:
        vars(owner)[name] = _as_it_is
    try:
        yield
    finally:
        for owner, name, value in kept:
            vars(owner)[name] = value


@probe("split-overlap")
def rows_of_both_loaders(subject: Subject) -> Iterator[Evidence]:
    """The loaders give the same rows: for streams, lists of batches and loaders that prepare batches."""
    if subject.trainer.settings.overfit_batches:
        return
    tables = subject.table("train"), subject.table("val")
    parts = [[*t.inputs.values(), *t.targets.values()] for t in tables]
    if not parts[0] or len(parts[0]) != len(parts[1]) or not tables[0].inputs:
        return
    if not any(tells_rows_apart(one[0]) for one in tables[1].inputs.values() if len(one)):
        return
    rows = [
        list(zip(*(checksums_of_rows(one.reshape(len(one), -1)) for one in p), strict=False)) for p in parts
    ]
    known = set(rows[0])
    shared = sum(row in known for row in rows[1])
    if len(rows[1]) >= 8 and shared > 0.05 * len(rows[1]):
        yield Evidence(
            f"{shared} of {len(rows[1])} validation rows are training rows too",
            "split the data once, before copies are made, and give each part its own samples",
        )


@probe("augmented-validation")
def validation_samples_that_change(subject: Subject) -> Iterator[Evidence]:
    """A validation sample is another one each time it is read, and still resembles itself."""
    dataset: Any = subject.dataset("val")
    if dataset is not None and len(dataset):
        changed, looked = 0, 0
        for index in range(0, len(dataset), max(1, len(dataset) // 6)):
            reads = []
            for seed in (11, 12):
                with seeded(seed, _CPU):
                    reads.append(parts_of(dataset[index]))
            looked += 1
            changed += _is_augmented(*reads)
        if changed > 0.5 * looked:
            yield _changes(f"{changed} of {looked} validation samples")
            return
    loader = subject.val_loader
    if loader is None or isinstance(loader, Iterator) or not hasattr(loader, "batch_sampler"):
        return
    reads = []
    for seed in (11, 12):
        with seeded(seed, _CPU):
            reads.append(dict(tensors_in(next(iter(loader), None))))
    if _is_augmented(*reads):
        yield _changes("validation batches")


def _changes(what: str) -> Evidence:
    return Evidence(
        f"{what} are other ones each time they are read: random augmentation",
        "give the validation data a transform without random parts",
    )


def _is_augmented(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether a tensor differs and resembles itself, and none of its form is the same in both readings."""
    both = [(first[place], second[place]) for place in first.keys() & second.keys()]
    changed = {one.shape for one, other in both if _resembles(one, other)}
    same = {one.shape for one, other in both if one.dtype.is_floating_point and torch.equal(one, other)}
    return bool(changed - same)


def _resembles(one: Tensor, other: Tensor) -> bool:
    """Whether two readings differ and are yet of one thing."""
    if not one.dtype.is_floating_point or one.shape != other.shape or one.numel() < 2:
        return False
    a, b = one.double().flatten(), other.double().flatten()
    if bool(torch.isclose(a, b, rtol=1e-5, atol=1e-7).all()):
        return False
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b) / (a.norm() * b.norm() + 1e-12)) > 0.2


@probe("split-shift")
def parts_of_other_scale(subject: Subject) -> Iterator[Evidence]:
    """Validation inputs have another scale or place than training inputs."""
    train, val = subject.table("train"), subject.table("val")
    for place in train.inputs.keys() & val.inputs.keys():
        a, b = train.inputs[place], val.inputs[place]
        if not a.dtype.is_floating_point or min(a.numel(), b.numel()) < 200 or min(len(a), len(b)) < 16:
            continue
        mine, other = (float(one.double().std()) for one in (a, b))
        gap = float((a.double().mean() - b.double().mean()).abs())
        if max(mine, other) > 4 * min(mine, other) or gap > 3 * max(mine, other):
            yield Evidence(
                f"training inputs are {a.double().mean():.3g} ± {mine:.3g}, those of validation "
                f"{b.double().mean():.3g} ± {other:.3g}",
                "prepare both parts in the same way, with the numbers of the training part",
            )


@probe("split-shift")
def parts_standardised_apart(subject: Subject) -> Iterator[Evidence]:
    """Both parts have columns of mean 0 and deviation 1 exactly: each was standardised by itself."""
    train, val = subject.table("train"), subject.table("val")
    if not val.is_whole or not train.is_whole:
        return
    for place in train.inputs.keys() & val.inputs.keys():
        both = [one.inputs[place] for one in (train, val)]
        if any(one.dim() != 2 or not one.dtype.is_floating_point or len(one) < 8 for one in both):
            continue
        exact = [one.double().mean(0).abs() < 1e-4 / len(one) ** 0.5 for one in both]
        if exact[1].float().mean() > 0.5 and exact[1].sum() > 1 and exact[0].float().mean() > 0.5:
            yield Evidence(
                f"{int(exact[1].sum())} columns have a mean of exactly 0 in each of both parts",
                "standardise validation with the mean and deviation of the training part",
            )


@probe("split-shift")
def words_numbered_apart(subject: Subject) -> Iterator[Evidence]:
    """Both parts number their words in the order in which they appear: each has a vocabulary of its own."""
    for name in ("train", "val"):
        dataset: Any = subject.dataset(name)
        if dataset is None or len(dataset) < 4:
            return
        read = [parts_of(dataset[i]) for i in range(min(len(dataset), 200))]
        if isinstance(dataset, Subset) and name == "train":
            return
        rows = [next((p for p in one.values() if is_whole_type(p) and p.numel() > 2), None) for one in read]
        words = [w for row in rows if row is not None for w in row.flatten().tolist() if w > 0]
        order = list(dict.fromkeys(words))
        if len(order) < 10 or order != list(range(order[0], order[0] + len(order))):
            return
    yield Evidence(
        "words are numbered in the order in which they appear, in training and in validation alike",
        "build the vocabulary once, from the training texts, and use it for both",
    )


@probe("selected-on-test")
def test_data_in_validation(subject: Subject) -> Iterator[Evidence]:
    """The test data of the DataModule is its validation data."""
    datamodule = subject.data[2] or (
        subject.data[0] if hasattr(subject.data[0], "test_dataloader") else None
    )
    found = datamodule
    if found is None or not callable(getattr(found, "test_dataloader", None)) or subject.val_loader is None:
        return
    with seeded(5, _CPU):
        other = copy.copy(found)
        if callable(getattr(other, "setup", None)):
            try:
                other.setup("test")
            except Exception:
                return
        test = other.test_dataloader()
        if test is None:
            return
        if isinstance(test, (list, dict)):
            test = next(iter(test.values() if isinstance(test, dict) else test), None)
        rows: list[set[int]] = [set(), set()]
        for loader, known in ((test, rows[0]), (subject.val_loader, rows[1])):
            for number, batch in enumerate(loader):
                parts = [t for _, t in tensors_in(batch) if t.dim() and len(t)]
                best = max(parts, key=lambda one: one[0].numel(), default=None)
                if best is None or number > 50:
                    break
                known.update(checksums_of_rows(best.reshape(len(best), -1)))
    shared = len(rows[0] & rows[1])
    if len(rows[0]) >= 8 and shared > 0.5 * len(rows[0]):
        yield Evidence(
            f"{shared} of {len(rows[0])} test samples are the validation data by which the run is judged",
            "choose checkpoints by a part of the training data, and keep the test data for the end",
        )
