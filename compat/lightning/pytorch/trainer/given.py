"""What a trainer and its stages are given: one or several objects, loaders or a data module."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..... import PacelineError
from .....trainer.checkpoint import external_weights
from .....trainer.checkpoint.files.format import is_checkpoint
from .....trainer.data.combined_loader import CombinedLoader
from ...translation.data import GivenLoaders, unshuffled
from ..core import LightningDataModule
from ..utilities.combined_loader import OneAfterTheOther


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


def training_data(given: dict[str, Any], train: Any, val: Any, datamodule: Any) -> tuple[Any, Any, Any]:
    """The loaders and data module of a fit, as our trainer takes them.

    Args:
        given: The arguments of the Trainer.
        train: The training data that ``fit`` was given, if any.
        val: The validation data that it was given.
        datamodule: Ours, of the data module.
    """
    train = combined(train)
    if given["overfit_batches"]:
        train, val = unshuffled(train), unshuffled(val)
    if given["reload_dataloaders_every_n_epochs"] and train is not None:
        return None, None, GivenLoaders(train, val)
    return train, val, datamodule


def combined(loaders: Any) -> Any:
    """Several training loaders as Lightning combines them: as long as the longest, shorter ones again.

    Raises:
        PacelineError: for loaders to be read one after the other.
    """
    if isinstance(loaders, OneAfterTheOther):
        raise PacelineError(
            'CombinedLoader(mode="sequential") is for evaluations',
            code="combined-loader",
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


def make_room(path: Any) -> None:
    """Remove the checkpoint or file at a path, which another checkpoint replaces.

    Raises:
        PacelineError: for a folder that holds something else.
    """
    found = Path(path)
    if found.is_symlink() or found.is_file():
        found.unlink()
    elif found.is_dir() and any(found.iterdir()):
        if not (is_checkpoint(found) or external_weights.is_readable(found)):
            raise PacelineError(
                "save_checkpoint replaces a checkpoint, and this folder is none",
                code="file-exists",
                where=str(found),
                fix="another path: trainer.save_checkpoint('last.ckpt')",
            )
        shutil.rmtree(found)
    elif found.is_dir():
        found.rmdir()


def check_kinds(argument: str, given: Sequence[Any], takes: str, base: type, *more: type) -> None:
    """Check that all objects of an argument are of a class.

    Raises:
        PacelineError: naming the class to subclass, ``base``.
    """
    for one in given:
        if not isinstance(one, (base, *more)):
            raise PacelineError(
                f"{argument}= takes {takes}",
                code="wrong-object",
                got=type(one).__name__,
                fix=f"subclass {base.__module__.rpartition('.')[0]}.{base.__name__}",
            )
