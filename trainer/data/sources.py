"""Where data comes from: fit's arguments, then the DataModule, then the module; and the feeds over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from ...errors import PacelineError, nearest
from ..datamodule import DataModule
from .combined_loader import CombinedLoader
from .factory import check_data, is_several, make_feed
from .feed import Feed, FeedSettings

_KINDS = {"train": "training", "val": "validation", "test": "test", "predict": "prediction"}


def as_datamodule(given: Any, datamodule: Any) -> tuple[Any, Any]:
    """(dataloader, DataModule): a DataModule given in the place of a dataloader is one all the same.

    Raises:
        PacelineError: for something else in the place of the DataModule.
    """
    if isinstance(given, DataModule):
        return None, given
    is_class = isinstance(datamodule, type)
    is_data = isinstance(datamodule, (Dataset, str)) or hasattr(datamodule, "__iter__")
    is_data = is_data and not any(hasattr(datamodule, name) for name in _METHODS)
    if not is_class and not is_data:
        return given, datamodule
    raise PacelineError(
        "datamodule takes a DataModule",
        code="wrong-object",
        got=f"the class {datamodule.__name__}" if is_class else type(datamodule).__name__,
        allowed=f"an object with {_METHODS[0]}(), or others of its methods",
        fix=f"{datamodule.__name__}(...)"
        if is_class
        else "a DataLoader is given by itself, after the module: fit(module, loader)",
    )


_METHODS = [f"{kind}_dataloader" for kind in _KINDS]


def find_data(given: Any, kind: str, datamodule: Any, module: Any, argument: str | None = None) -> Any:
    """The dataloader of ``kind`` (train, val, test, predict), or None.

    Args:
        given: The argument of ``fit`` and relatives; it takes precedence.
        kind: Which data.
        datamodule: Asked first for its method.
        module: Asked next.
        argument: What ``given`` was passed as, where that is not the name of the method.

    Raises:
        PacelineError: for what is no loader, naming its place.
    """
    name = f"{kind}_dataloader"
    if given is not None:
        check_data(given, _KINDS[kind], argument or name)
        return given
    for owner in (datamodule, module):
        method = getattr(owner, name, None)
        found = method() if callable(method) else None
        if found is not None:
            check_data(found, _KINDS[kind], f"{type(owner).__name__}.{name}()")
            return found
    return None


def missing_data(kind: str, datamodule: Any, module: Any) -> str | None:
    """Why there is no data, where a method of another name or without ``return`` is the likely reason."""
    name = f"{kind}_dataloader"
    for owner in (datamodule, module):
        cls = type(owner)
        method = vars(DataModule).get(name)
        if getattr(cls, name, method) is not method:
            return f"{cls.__name__}.{name}() returned None: it must return the loader"
        known = {*dir(DataModule), *dir(nn.Module), *_METHODS}
        own = [
            one for one in dir(cls) if one not in known and "load" in one and callable(getattr(cls, one))
        ]
        meant = nearest(name, own)
        if meant:
            return f"{cls.__name__}.{meant} is never called by a Trainer: rename it to {name}"
    return None


def training_feed(
    data: Any,
    settings: FeedSettings,
    saved_global_batch: int,
    automatic: bool,
    why_none: Callable[[], str | None] = lambda: None,
) -> Feed:
    """The feed over the training data.

    Args:
        data: A DataLoader, or any iterable of batches; several are combined.
        settings: What every feed needs to know.
        saved_global_batch: A resumed run's global batch in samples, kept unless ``settings`` gives
            another; 0 for a new run.
        automatic: False under manual optimization, where a step is one batch.
        why_none: Asked where there is no data: the likely reason, if there is one.

    Raises:
        PacelineError: without data, and for what cannot be trained on.
    """
    if data is None:
        raise PacelineError(
            "there is no training data",
            code="no-data",
            allowed="fit(module, dataloader), a DataModule, or train_dataloader on the module",
            fix=why_none(),
        )
    if is_several(data):
        data = CombinedLoader(data)
    if settings.accumulate > 1 and not automatic:
        raise PacelineError(
            "accumulate is not possible with manual optimization: the module steps the optimizer",
            code="manual-optimization",
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
            code="manual-optimization",
            got=f"{feed.micro_batches} micro-batches in a step",
            fix="set the loader's batch_size to the global batch size",
        )
    return feed


def evaluation_feeds(data: Any, settings: FeedSettings) -> dict[str, Feed]:
    """The feeds over validation, test or prediction data, by name; one unnamed one is ``""``."""
    if isinstance(data, CombinedLoader):
        raise PacelineError(
            "an evaluation reads its loaders one after another, and takes no CombinedLoader",
            code="combined-loader",
            fix="give it the dict or list of them",
        )
    if not is_several(data):
        return {"": make_feed(data, settings)}
    named = data if isinstance(data, Mapping) else {str(i): one for i, one in enumerate(data)}
    return {
        str(name): make_feed(one, replace(settings, dataloader_idx=number))
        for number, (name, one) in enumerate(named.items())
    }
