"""The feed for whatever the user gave as training or evaluation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...errors import PacelineError
from .combined_feed import CombinedFeed
from .combined_loader import CombinedLoader
from .feed import Feed, FeedSettings
from .map_feed import MapFeed
from .stream_feed import StreamFeed


def make_feed(data: Any, settings: FeedSettings) -> Feed:
    """The feed for a DataLoader of either kind, or for anything that can be iterated over batches.

    Raises:
        PacelineError: for what cannot be iterated, and for a Dataset: its items are samples.
    """
    if isinstance(data, CombinedLoader):
        return CombinedFeed(data, settings, make_feed)
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        return MapFeed(data, settings)
    if hasattr(data, "__iter__") and not isinstance(data, (Dataset, str, bytes)):
        return StreamFeed(data, settings)
    raise PacelineError(
        "the training or evaluation data cannot be iterated over batches",
        got=type(data).__name__,
        allowed="a DataLoader, or any object with __iter__ over batches",
        fix="DataLoader(dataset, batch_size=...)",
    )


def is_several(data: Any) -> bool:
    """Whether ``data`` is a list or dict of dataloaders, not one sequence of ready batches."""
    if isinstance(data, Mapping):
        return True
    return isinstance(data, (list, tuple)) and (
        any(isinstance(item, DataLoader) for item in data) or (bool(data) and all(map(_is_loader, data)))
    )


def _is_loader(item: Any) -> bool:
    no_batch = not isinstance(item, (Tensor, Mapping, Sequence))
    return isinstance(item, DataLoader) or (no_batch and hasattr(item, "__iter__"))
