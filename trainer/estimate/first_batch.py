"""The batch an estimate is made of: the one that is given, or the first of the training data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ...callbacks.hooks import with_arity
from ...errors import PacelineError
from ..data.combined_loader import CombinedLoader
from ..data.factory import is_several
from ..data.sources import find_data
from ..module import TrainModule
from ..rng import generators_of, putting_back, untouched
from ..utils.nested import tensors_of


def find_batch(module: TrainModule, given: Any, datamodule: Any) -> Any:
    """A micro-batch as ``training_step`` takes it, on the host.

    Args:
        module: Whose ``train_dataloader`` and ``on_before_batch_transfer`` are used where there are some.
        given: A batch, a DataLoader, or None.
        datamodule: A ``DataModule``; its ``prepare_data`` and ``setup`` are called where it is used.

    Raises:
        PacelineError: where there is none.
    """
    if given is None and datamodule is not None:
        datamodule.prepare_data()
        with_arity(datamodule.setup, 1)("fit")
    data = given if given is not None else find_data(None, "train", datamodule, module)
    if data is None:
        raise PacelineError(
            "an estimate needs a batch",
            code="estimate-not-possible",
            allowed="a batch, a DataLoader, a DataModule, or train_dataloader on the module",
        )
    batch = _first(data) if _is_loader(data) else data
    if not tensors_of(batch):
        raise PacelineError(
            "an estimate needs a batch with tensors", code="estimate-not-possible", got=type(batch).__name__
        )
    owner = datamodule if datamodule is not None else module
    return with_arity(owner.on_before_batch_transfer, 2)(batch, 0)


def _is_loader(data: Any) -> bool:
    """Whether it gives batches, and is none: tensors and containers of tensors are."""
    if isinstance(data, CombinedLoader):
        return True
    if isinstance(data, (Tensor, tuple)) or not isinstance(data, Iterable):
        return False
    if isinstance(data, Mapping):
        return any(_is_loader(one) for one in data.values())
    if isinstance(data, list):
        return not all(isinstance(one, Tensor) for one in data)
    return not tensors_of(data)


def _first(data: Any) -> Any:
    """The first batch, read in this process; the loader and all generators are left as they are."""
    if is_several(data):
        data = CombinedLoader(data)
    if isinstance(data, CombinedLoader):
        return data.batch([_first(loader) for loader in data.named.values()])
    restore = [putting_back(one) for one in generators_of(data, getattr(data, "batch_sampler", None))]
    try:
        if isinstance(data, DataLoader):
            workers = {"num_workers": data.num_workers, "timeout": data.timeout}
            restore.append(partial(vars(data).update, workers))
            data.num_workers, data.timeout = 0, 0
        with untouched(torch.device("cpu")):
            for batch in data:
                return batch
    finally:
        for call in restore:
            call()
    raise PacelineError("the training data has no batch", code="no-data", got=type(data).__name__)
