"""What a trainer and its stages are given: one or several objects, loaders or a data module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..... import PacelineError
from .....trainer.data.combined_loader import CombinedLoader
from ..core import LightningDataModule
from ..utilities import OneAfterTheOther


def as_list(given: Any) -> list[Any]:
    """One or several, or None, as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, Sequence) else [given]


def as_datamodule(dataloaders: Any, datamodule: Any) -> tuple[Any, Any]:
    """Dataloaders and data module, where the latter may stand in the place of the former."""
    return (
        (None, dataloaders) if isinstance(dataloaders, LightningDataModule) else (dataloaders, datamodule)
    )


def combined(loaders: Any) -> Any:
    """Several training loaders as Lightning combines them: as long as the longest, shorter ones again.

    Raises:
        PacelineError: for loaders to be read one after the other.
    """
    if isinstance(loaders, OneAfterTheOther):
        raise PacelineError(
            'CombinedLoader(mode="sequential") is for evaluations',
            fix='mode="max_size_cycle", "max_size" or "min_size" to train on; ConcatDataset of '
            "torch.utils.data for one data set after the other",
        )
    several = isinstance(loaders, (list, tuple, dict)) and loaders
    first = (
        next(iter(loaders.values() if isinstance(loaders, dict) else loaders), None) if several else None
    )
    if several and hasattr(first, "dataset"):
        return CombinedLoader(loaders)
    return loaders


def check_kinds(argument: str, given: Sequence[Any], takes: str, base: type, *more: type) -> None:
    """Check that all objects of an argument are of a class.

    Raises:
        PacelineError: naming the class to subclass, ``base``.
    """
    for one in given:
        if not isinstance(one, (base, *more)):
            raise PacelineError(
                f"{argument}= takes {takes}",
                got=type(one).__name__,
                fix=f"subclass {base.__module__.rpartition('.')[0]}.{base.__name__}",
            )
