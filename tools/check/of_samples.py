"""Which samples training gets: all of them, in which order, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ...callbacks.checks.finding import Evidence
from ...callbacks.checks.tensor_facts import checksums_of_rows
from .probe import probe
from .subject import Subject

_FEWEST = 32


def keys_of(sample: dict[str, Tensor]) -> tuple[int, ...]:
    """A checksum of each tensor of a sample."""
    return tuple(checksums_of_rows(one.reshape(1, -1))[0] for one in sample.values() if one.numel())


def tells_rows_apart(tensor: Tensor) -> bool:
    """Whether rows of it that are equal are hardly so by chance."""
    size = tensor.numel()
    if tensor.dtype.is_floating_point:
        return size >= 3 and not bool((tensor == tensor.round()).all())
    return size >= 8


@probe("repeated-samples")
def samples_several_times(subject: Subject) -> Iterator[Evidence]:
    """The training set has copies of samples."""
    if type(subject.dataset("train")).__module__.startswith("paceline."):
        return  # a mixture, which is to repeat samples
    read = [(index, one) for index, one in subject.samples("train") if one]
    rich = [one for _, one in read if any(tells_rows_apart(part) for part in one.values())]
    if len(rich) < _FEWEST or len(rich) < 0.9 * len(read):
        return
    counts = Counter(keys_of(one) for one in rich)
    repeated = len(rich) - len(counts)
    if repeated > 0.15 * len(rich):
        most = max(counts.values())
        yield Evidence(
            f"{repeated} of {len(rich)} training samples that were read are copies (one {most} times)",
            "leave the copies out, or weight samples by a sampler",
        )


@probe("repeated-samples")
def stream_read_by_each_worker(subject: Subject) -> Iterator[Evidence]:
    """Each worker of a stream gives all samples."""
    loader = subject.loaders.get("train")
    if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, IterableDataset):
        return
    if loader.num_workers < 2:
        return
    table = subject.table("train")
    rows: Any = table.numbers()
    rows = table.tokens() if rows is None else rows
    if rows is None or len(rows) < _FEWEST or not tells_rows_apart(rows[0]):
        return
    counts = Counter(checksums_of_rows(rows))
    share = sum(n for n in counts.values() if n >= loader.num_workers) / len(rows)
    if share > 0.8:
        yield Evidence(
            f"each sample of the stream comes {loader.num_workers} times, once from each worker",
            "divide the samples by torch.utils.data.get_worker_info()",
        )


@probe("dropped-samples")
def samples_left_out(subject: Subject) -> Iterator[Evidence]:
    """A sampler, drop_last or a limit leaves many samples out of an epoch."""
    dataset: Any = subject.dataset("train")
    loader: Any = subject.loaders.get("train")
    settings = subject.trainer.settings
    if settings.overfit_batches:
        return  # whether it can learn some samples is what is tried
    if dataset is None or len(dataset) < _FEWEST:
        return
    total = len(dataset)
    limit = _limit(subject)
    if limit:
        yield Evidence(limit, "leave limit_train_batches out")
        return
    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    if batches is None or not isinstance(loader, DataLoader):
        return
    if type(sampler).__name__ != "DistributedSampler" and hasattr(sampler, "__len__"):
        taken = len(sampler)  # type: ignore[arg-type]
        if taken < 0.7 * total:
            kind = type(sampler).__name__
            yield Evidence(
                f"the {kind} gives {taken} samples an epoch, and the training set has {total}",
                "let the sampler give as many samples as there are",
            )
            return
        size = getattr(batches, "batch_size", 0) or 0
        if getattr(batches, "drop_last", False) and size and taken % size > 0.25 * taken:
            yield Evidence(
                f"drop_last leaves {taken % size} of {taken} samples out of each epoch",
                "take smaller batches, or drop_last=False",
            )


def _limit(subject: Subject) -> str:
    """What a limit of batches leaves out, where the whole run does not come to see most samples."""
    settings = subject.trainer.settings
    loader: Any = subject.loaders.get("train")
    limit = settings.limit_train_batches
    if limit is None or settings.limit_val_batches is not None or not hasattr(loader, "__len__"):
        return ""  # where both are limited, whether the program runs is what is tried
    share = limit if isinstance(limit, float) else limit / max(1, len(loader))
    if share * (settings.max_epochs or 1) >= 1.5 or share > 0.7:
        return ""
    return f"limit_train_batches={limit} leaves {1 - share:.0%} of the batches out of each epoch"


@probe("no-shuffle")
def order_of_the_data_set(subject: Subject) -> Iterator[Evidence]:
    """The training loader goes through a data set in its order."""
    loader: Any = subject.loaders.get("train")
    if subject.dataset("train") is None or subject.trainer.settings.overfit_batches:
        return
    sampler = getattr(loader, "sampler", None)
    if type(sampler) is not SequentialSampler or isinstance(sampler, RandomSampler):
        return
    if len(loader) < 4 or not subject.target_places or _changes_its_order(loader):
        return
    yield Evidence(
        f"the training loader has shuffle=False: its {len(loader)} batches are the same in each epoch",
        "give the training DataLoader shuffle=True",
    )


def _changes_its_order(loader: Any) -> bool:
    """Whether rows of the data set follow each other in time, or the data set shuffles them itself."""
    dataset = loader.dataset
    if hasattr(dataset, "set_epoch") or hasattr(dataset, "shuffle"):
        return True
    return type(loader.batch_sampler).__name__ != "BatchSampler"


@probe("missing-classes")
def classes_training_never_shows(subject: Subject) -> Iterator[Evidence]:
    """Validation has classes that a whole epoch of training has not."""
    train, val = subject.table("train"), subject.table("val")
    shown, wanted = train.classes(), val.classes()
    if shown is None or wanted is None or not train.is_whole or len(shown) < _FEWEST:
        return
    counts = Counter(shown.tolist())
    absent = {c: n for c, n in Counter(wanted.tolist()).items() if c not in counts and c >= 0}
    if len(counts) < 2 or (len(wanted.unique()) > 1 and set(wanted.tolist()).isdisjoint(counts)):
        return  # anomalies, or classes of which a few samples are shown later
    if absent and sum(absent.values()) >= 0.03 * len(wanted) and len(counts) <= 1000:
        names = ", ".join(str(c) for c in sorted(absent)[:5])
        yield Evidence(
            f"training has no sample of class {names}, and validation has {sum(absent.values())}",
            "split at random, or by class, before anything is left out",
        )


@probe("sorted-batches")
def batches_of_one_class(subject: Subject) -> Iterator[Evidence]:
    """Each training batch has one class, and the classes follow each other."""
    table = subject.table("train")
    classes = table.classes()
    if classes is None or len(table.sizes) < 6 or len(classes) != table.rows or min(table.sizes[:-1]) < 4:
        return
    kinds = [len(part.unique()) for part in classes.split(table.sizes)]
    count = len(classes.unique())
    changes = int((classes[1:] != classes[:-1]).sum())
    if int(classes.unique(return_counts=True)[1].max()) > 0.9 * len(classes):
        return  # a rare class, which most batches have none of
    if count > 1 and changes < 0.05 * len(classes) and torch.tensor(kinds).float().mean() < 1.6:
        yield Evidence(
            f"{kinds.count(1)} of {len(kinds)} training batches have one class only",
            "give the training DataLoader shuffle=True",
        )
