"""Plain facts of tensors, batches and samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .seen import BatchFacts, TensorFacts

_SAMPLE = 4096
_MOST = 2**16
_COLUMNS = 256
_CLOSE = 1e-4
_TARGETS = ("target", "targets", "label", "labels", "y", "class", "classes")
_SHAPES = {
    *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "T", "Transpose", "Permute", "Select"),
    *("Slice", "Expand", "Clone", "Alias", "ToCopy", "AsStrided", "Split", "Unbind", "Index"),
}
_SHAPED_MOST = 8
_SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def facts_of(
    tensor: Tensor,
    batch_memory: frozenset[int] = frozenset(),
    light: bool = False,
    sample: int = _SAMPLE,
    most: int = _MOST,
) -> TensorFacts:
    """What is known of a tensor.

    Args:
        tensor: Of any kind that has values.
        batch_memory: Where the tensors of the batch lie: what ``memory_of`` gave for each.
        light: Leave the values out.
        sample: How many of the values are kept.
        most: Of a larger tensor some rows are looked at, about so many values.
    """
    memory = memory_of(tensor)
    made_by = type(tensor.grad_fn).__name__.partition("Backward")[0] if tensor.grad_fn is not None else ""
    values = tensor.detach()
    light = light or not is_readable(values) or not tensor.numel() or values.is_complex()
    numbers, first, alike, sums = [0.0] * 5, torch.empty(0), False, False
    if not light:
        if values.dim() and values.numel() > most:  # some rows tell enough, and take little memory
            values = values[: max(2, most // values[0].numel())]
        flat = values.reshape(-1)
        wide = flat.to(torch.float64 if values.dtype == torch.float64 else torch.float32)
        spread = wide.std(correction=0)
        whole = (wide == wide.round()).all()
        numbers = torch.stack([wide.min(), wide.max(), wide.mean(), spread, whole.to(wide.dtype)]).tolist()
        first = flat[:sample].cpu().clone()
        alike, sums = _rows_alike(values), numbers[0] >= 0 and _sums_to_one(values)
    return TensorFacts(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        requires_grad=tensor.requires_grad,
        made_by=made_by,
        minimum=numbers[0],
        maximum=numbers[1],
        mean=numbers[2],
        std=numbers[3],
        whole=bool(numbers[4]),
        rows_alike=alike,
        sums_to_one=sums,
        from_batch=memory in batch_memory,
        sample=first,
        origin=_origin(tensor),
        memory=memory,
    )


def is_readable(tensor: Tensor) -> bool:
    """Whether any function can read its values here.

    Not those of a class that chooses what each operation does: quantized weights, which have few
    operations, and sharded ones, which all ranks would have to read. Not those inside of ``vmap``.
    """
    is_plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    return is_plain and tensor.layout is torch.strided and (memory_of(tensor) != 0 or not tensor.numel())


def _origin(tensor: Tensor) -> str:
    """The last node that made a tensor's values, past those that only change its shape."""
    node = tensor.grad_fn
    for _ in range(_SHAPED_MOST):
        if node is None:
            return ""
        name = type(node).__name__.partition("Backward")[0]
        if name not in _SHAPES or not node.next_functions:
            return name
        node = node.next_functions[0][0]
    return ""


def _rows_alike(values: Tensor) -> bool:
    if values.dim() == 0 or len(values) < 2 or not values.dtype.is_floating_point:
        return False
    size = values.abs().max()
    return bool((values - values[:1]).abs().max() <= 1e-6 * size)


def _sums_to_one(values: Tensor) -> bool:
    if values.dim() == 0 or not values.dtype.is_floating_point:
        return False
    axis = min(1, values.dim() - 1)
    if values.shape[axis] < 2:
        return False
    close = _CLOSE if values.dtype in (torch.float32, torch.float64) else 0.02
    return bool(((values.sum(axis) - 1).abs() < close).all())


def memory_of(tensor: Tensor) -> int:
    """The address of a tensor's memory; 0 where it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # of a subclass without storage
        return 0


def tensors_in(batch: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch by their place: ``"0"``, ``"image"``, ``"1/mask"``."""
    if isinstance(batch, Tensor):
        yield place, batch
    elif isinstance(batch, Mapping):
        for key, one in batch.items():
            yield from tensors_in(one, f"{place}/{key}".lstrip("/"))
    elif isinstance(batch, (list, tuple)):
        for index, one in enumerate(batch):
            yield from tensors_in(one, f"{place}/{index}".lstrip("/"))


def batch_facts(
    batch: Any, step: int, known_targets: frozenset[str], light: bool = False, epoch: int = 0
) -> BatchFacts:
    """What is known of a batch.

    Args:
        batch: As the step gets it.
        step: Its number.
        known_targets: Places of tensors that a loss took as its target; where none is known, names and
            shapes tell.
        light: Checksums of its samples, and targets, alone.
        epoch: Of the run.
    """
    tensors = dict(tensors_in(batch))
    named = _named_targets(tensors)
    targets = known_targets & tensors.keys() or named or _last_of_several(tensors)
    inputs = {place: one for place, one in tensors.items() if place not in targets}
    main = _main_input(tensors)
    return BatchFacts(
        step=step,
        inputs={} if light else {place: facts_of(one) for place, one in inputs.items()},
        targets={place: facts_of(tensors[place]) for place in targets},
        rows=[] if main is None else _checksums(tensors, len(main)),
        epoch=epoch,
        tensors=len(tensors),
        targets_known=bool(known_targets & tensors.keys() or named),
        distinct=main is not None and _is_distinct(main),
    )


def _named_targets(tensors: dict[str, Tensor]) -> set[str]:
    return {place for place in tensors if place.rpartition("/")[2].lower() in _TARGETS}


def _last_of_several(tensors: dict[str, Tensor]) -> set[str]:
    last = list(tensors)[-1:]
    return set(last) if len(tensors) > 1 and last[0].rpartition("/")[2].isdigit() else set()


def _checksums(tensors: dict[str, Tensor], rows: int) -> list[int]:
    """A number for each sample of a batch, of all its tensors with so many rows."""
    sums = [0] * rows
    for place, one in tensors.items():
        if one.dim() and len(one) == rows and is_readable(one) and not one.is_complex():
            factor = 2 * hash(place) + 1 if not place.isdigit() else 2 * int(place) + 1
            sums = [(a + factor * b) % 2**64 for a, b in zip(sums, checksums_of_rows(one), strict=True)]
    return sums


def _is_distinct(rows: Tensor) -> bool:
    first = rows[0].detach().reshape(-1)[:64]
    return first.numel() > 2 and first.dtype.is_floating_point and int((first != first.round()).sum()) > 2


def _main_input(inputs: dict[str, Tensor]) -> Tensor | None:
    """The tensor with the most numbers in a row."""
    rows = [one for one in inputs.values() if one.dim() > 1 and len(one) and is_readable(one)]
    return max(rows, key=lambda one: one[0].numel(), default=None)


@torch.no_grad()
def checksums_of_rows(tensor: Tensor) -> list[int]:
    """A number for each row, equal for equal rows, whatever the batch; of at most 256 numbers of it."""
    flat = tensor.detach().reshape(len(tensor), -1)
    flat = flat[:, :: max(1, -(-flat.shape[1] // _COLUMNS))]
    if flat.dtype.is_floating_point:
        flat = (flat + 0.0).contiguous().view(_SAME_SIZE[flat.element_size()])  # -0.0 is 0.0
    flat = flat.to(torch.int64)
    places = torch.arange(1, flat.shape[1] + 1, dtype=torch.int64, device=flat.device)
    factors = places * 6364136223846793005 + 1442695040888963407
    sums: list[int] = ((flat ^ (flat >> 17)) * (factors | 1)).sum(1).tolist()
    return sums
