"""Reads a batch of a dataset of tensors in one piece, where torch's loader stacks single rows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from ...strategies.torch_internals import collate_table
from .dataset_proxy import DatasetProxy

_COLLATES = dict(collate_table)  # a program may add its own
# Types of which torch selects no rows, and those of the same size.
_SELECTED_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *_SELECTED_AS),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}


class Rows:
    """A ``TensorDataset``, a tensor, or subsets of one: a batch is a selection of rows of each tensor.

    Values, types, shapes and strides are those that the default collate function gives.

    Args:
        chosen: The row of each sample; None: its own number.
        alone: A sample is a tensor, not a tuple of them.
    """

    def __init__(self, tensors: Sequence[Tensor], chosen: Tensor | None, alone: bool) -> None:
        self._tensors, self._chosen, self._alone = tensors, chosen, alone

    @classmethod
    def of(cls, dataset: Any) -> Rows | None:
        """None where samples have to be read one by one."""
        if type(dataset) is Subset:
            inner = cls.of(dataset.dataset)
            chosen = None if inner is None else inner.rows_of(dataset.indices)
            return None if inner is None or chosen is None else cls(inner._tensors, chosen, inner._alone)
        alone = type(dataset) is Tensor
        if not alone and type(dataset) is not TensorDataset:
            return None
        tensors = (dataset,) if alone else tuple(dataset.tensors)
        return cls(tensors, None, alone) if tensors and all(map(_is_plain, tensors)) else None

    def rows_of(self, samples: Any) -> Tensor | None:
        """The rows of samples; None where one of them is no whole number from 0 on, or is not there."""
        if isinstance(samples, array) and samples.typecode == "q" and samples:
            found = torch.frombuffer(samples, dtype=torch.int64)
        elif isinstance(samples, np.ndarray) and samples.dtype.kind in "iu" and samples.ndim == 1:
            found = torch.from_numpy(samples.astype(np.int64))
        elif isinstance(samples, (list, tuple, range)) and all(type(sample) is int for sample in samples):
            found = torch.tensor(samples, dtype=torch.int64)
        else:
            return None
        there = len(self._tensors[0]) if self._chosen is None else len(self._chosen)
        if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < there:
            return None
        return found if self._chosen is None else self._chosen[found]

    def read(self, rows: Tensor, pin: bool = False) -> Any:
        """The batch of these rows.

        Args:
            rows: The indices of the rows, int64, shape (batch size,).
            pin: Into memory that a device can copy from while the host continues.
        """
        batch = [_select(tensor, rows) for tensor in self._tensors]
        if pin:
            batch = [part.pin_memory() if part.is_cpu else part for part in batch]
        return batch[0] if self._alone else batch


class RowsDataset(DatasetProxy, Dataset[Any]):
    """Gives a loader, in its workers too, batches that are collated already."""

    def __init__(self, dataset: Any) -> None:
        self.inner = dataset
        self._rows: Rows | None = None

    def __getitem__(self, index: Any) -> Any:
        return self.inner[index]

    def __getitems__(self, indices: list[Any]) -> Any:
        self._rows = rows = self._rows or Rows.of(self.inner)
        found = None if rows is None else rows.rows_of(list(indices))
        if rows is None or found is None:
            return default_collate([self.inner[index] for index in indices])
        return rows.read(found)

    def forget(self) -> None:
        """Another epoch begins: the tensors may be others."""
        self._rows = None


def handed_on(batch: Any) -> Any:
    """Stands where the collate function was."""
    return batch


def is_read_by_rows(loader: DataLoader[Any]) -> bool:
    """Whether batches of a loader are rows of tensors, collated as torch does."""
    if type(loader) is not DataLoader or loader.batch_sampler is None:
        return False
    if loader.collate_fn is not default_collate or collate_table != _COLLATES:
        return False
    return Rows.of(loader.dataset) is not None


def _select(tensor: Tensor, rows: Tensor) -> Tensor:
    if not tensor.is_cpu:
        rows = rows.to(tensor.device, non_blocking=True)
    alike = _SELECTED_AS.get(tensor.dtype)
    if alike is None:
        return tensor.index_select(0, rows)
    return tensor.view(alike).index_select(0, rows).view(tensor.dtype)


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.dtype in _DTYPES
        and tensor.ndim > 0
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
    )
