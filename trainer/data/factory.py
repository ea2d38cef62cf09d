"""The feed for whatever the user gave as training or evaluation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...errors import PacelineError
from ..datamodule import DataModule
from .combined_feed import CombinedFeed
from .combined_loader import CombinedLoader
from .feed import Feed, FeedSettings
from .map_feed import MapFeed
from .stream_feed import StreamFeed

_ARRAYS = "DataLoader(TensorDataset(inputs, targets), batch_size=...), of tensors (torch.from_numpy)"
_NO_BATCHES = (Dataset, str, bytes)


def make_feed(data: Any, settings: FeedSettings) -> Feed:
    """The feed for a DataLoader of either kind, or for anything that can be iterated over batches.

    Raises:
        PacelineError: for what cannot be iterated, and for a Dataset: its items are samples.
    """
    if isinstance(data, CombinedLoader):
        return CombinedFeed(data, settings, make_feed)
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        return MapFeed(data, settings)
    check_loader(data, "training or evaluation", None)
    return StreamFeed(data, settings)


def check_data(data: Any, kind: str, where: str) -> None:
    """Refuse one loader, or one of several, that is none, and name its place.

    Args:
        data: What the user gave, or a method returned.
        kind: ``"training"``, ``"validation"``, ``"test"`` or ``"prediction"``.
        where: The argument, or the method.

    Raises:
        PacelineError: for the first loader that is none.
    """
    several = data.loaders if isinstance(data, CombinedLoader) else data
    if several is data and not is_several(data):
        check_loader(data, kind, where)
        return
    named = several.items() if isinstance(several, Mapping) else enumerate(several)
    for name, one in named:
        if not isinstance(one, (CombinedLoader, Mapping)):  # what takes none of these says so
            check_loader(one, kind, f"item {name!r} of {where}")


def check_loader(data: Any, kind: str, where: str | None) -> None:
    """Refuse what is no loader, and no other iterable over batches.

    Raises:
        PacelineError: with what makes one of it.
    """
    fix = _cure(data)
    if fix is not None:
        raise PacelineError(
            f"the {kind} data cannot be iterated over batches",
            code="wrong-object",
            where=where,
            got=_kind_of(data),
            allowed="a DataLoader, or any object with __iter__ over batches",
            fix=fix or None,
        )


def _kind_of(data: Any) -> str:
    if isinstance(data, type):
        return f"the class {data.__name__}"
    if isinstance(data, (list, tuple)):
        return f"a {type(data).__name__} of {', '.join(type(one).__name__ for one in data)}"
    return type(data).__name__


def _cure(data: Any) -> str | None:
    """What makes a loader of it, "" where nothing does; None for what is one."""
    if isinstance(data, type):
        return f"an object of it: {data.__name__}(...)"
    if _is_array(data):
        return _ARRAYS if not isinstance(data, Tensor) else f"{_ARRAYS}; list(tensor) are batches"
    if isinstance(data, (list, tuple)) and len(data) > 1 and all(map(_is_array, data)):
        # Batches of one kind differ in their sizes; inputs and targets in their dtype or dimensions.
        kinds = {(str(one.dtype), one.ndim) for one in data}
        return _ARRAYS if len(kinds) > 1 else None
    if isinstance(data, DataModule):
        return "a DataModule stands in the place of all loaders: datamodule=..."
    if isinstance(data, DataLoader) or (hasattr(data, "__iter__") and not isinstance(data, _NO_BATCHES)):
        return None
    if callable(data) and not isinstance(data, Dataset):
        return f"call it: {getattr(data, '__name__', 'function')}()"
    if data is None:
        return "leave it out, or give its DataLoader"
    return "DataLoader(dataset, batch_size=...)" if isinstance(data, Dataset) else ""


def _is_array(data: Any) -> bool:
    """Whether it holds samples: a tensor, an array, a column of a table."""
    return hasattr(data, "__array__") and hasattr(data, "dtype") and hasattr(data, "ndim")


def is_several(data: Any) -> bool:
    """Whether ``data`` is a list or dict of dataloaders, not one sequence of ready batches."""
    if isinstance(data, Mapping):
        return True
    return isinstance(data, (list, tuple)) and (
        any(isinstance(item, (DataLoader, Dataset)) for item in data)
        or (bool(data) and all(map(_is_loader, data)))
    )


def _is_loader(item: Any) -> bool:
    no_batch = not isinstance(item, (Tensor, Mapping, Sequence))
    return isinstance(item, DataLoader) or (no_batch and hasattr(item, "__iter__"))
