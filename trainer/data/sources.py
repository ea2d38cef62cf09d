"""Where data comes from: fit's arguments, then the DataModule, then the module; and the feeds over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import PacelineError
from ..datamodule import DataModule
from .combined_loader import CombinedLoader
from .factory import is_several, make_feed
from .feed import Feed, FeedSettings


def as_datamodule(given: Any, datamodule: Any) -> tuple[Any, Any]:
    """(dataloader, DataModule): a DataModule given in the place of a dataloader is one all the same."""
    return (None, given) if isinstance(given, DataModule) else (given, datamodule)


def find_data(given: Any, kind: str, datamodule: Any, module: Any) -> Any:
    """The dataloader of ``kind`` (train, val, test, predict), or None."""
    if given is not None:
        return given
    for owner in (datamodule, module):
        method = getattr(owner, f"{kind}_dataloader", None)
        found = method() if callable(method) else None
        if found is not None:
            return found
    return None


def training_feed(data: Any, settings: FeedSettings, saved_global_batch: int, automatic: bool) -> Feed:
    """The feed over the training data.

    Args:
        data: A DataLoader, or any iterable of batches; several are combined.
        settings: What every feed needs to know.
        saved_global_batch: A resumed run's global batch in samples, kept unless ``settings`` gives
            another; 0 for a new run.
        automatic: False under manual optimization, where a step is one batch.

    Raises:
        PacelineError: without data, and for what cannot be trained on.
    """
    if data is None:
        raise PacelineError(
            "there is no training data",
            allowed="fit(module, dataloader), a DataModule, or train_dataloader on the module",
        )
    if is_several(data):
        data = CombinedLoader(data)
    if settings.accumulate > 1 and not automatic:
        raise PacelineError(
            "accumulate is not possible with manual optimization: the module steps the optimizer",
            got=f"{settings.accumulate} micro-batches in a step",
            fix="call optimizer.step() in training_step every so many batches",
        )
    feed = make_feed(data, settings)
    keeps = saved_global_batch and not settings.global_batch and feed.step_size is not None
    if keeps and feed.step_size != saved_global_batch:
        settings.log_line(f"a global batch of {saved_global_batch} is kept, as the checkpoint has it")
        feed = make_feed(data, replace(settings, global_batch=saved_global_batch))
    if feed.micro_batches > 1 and not automatic:
        raise PacelineError(
            "with manual optimization a step is one batch: the module steps the optimizer",
            got=f"{feed.micro_batches} micro-batches in a step",
            fix="set the loader's batch_size to the global batch size",
        )
    return feed


def evaluation_feeds(data: Any, settings: FeedSettings) -> dict[str, Feed]:
    """The feeds over validation, test or prediction data, by name; one unnamed one is ``""``."""
    if isinstance(data, CombinedLoader):
        raise PacelineError(
            "an evaluation reads its loaders one after another, and takes no CombinedLoader",
            fix="give it the dict or list of them",
        )
    if not is_several(data):
        return {"": make_feed(data, settings)}
    named = data if isinstance(data, Mapping) else {str(i): one for i, one in enumerate(data)}
    return {
        str(name): make_feed(one, replace(settings, dataloader_idx=number))
        for number, (name, one) in enumerate(named.items())
    }
