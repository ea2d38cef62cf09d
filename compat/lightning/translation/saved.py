"""What ``on_save_checkpoint`` added to a checkpoint."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ....trainer.checkpoint import external_weights
from ....trainer.checkpoint.files import format as files
from ....trainer.checkpoint.files.json_codec import is_plain
from ....trainer.checkpoint.files.reading import hparams_of, read_manifest, read_state
from ....trainer.checkpoint.weights import find_weights

_READ_ONLY = ("hyper_parameters", "state_dict")
"""What hooks may read of a checkpoint, which is written by itself."""


class SavedByHooks(dict[str, Any]):
    """What ``on_save_checkpoint`` gets: add plain data to it.

    Args:
        values: What it begins with.
        module: Its weights and hyperparameters can be read.
    """

    def __init__(self, values: Mapping[str, Any] = {}, module: Any = None) -> None:
        super().__init__(values)
        self._module = module
        if module is not None:
            self["hyper_parameters"] = dict(module.hparams)

    def __missing__(self, key: str) -> Any:
        if key == "state_dict" and self._module is not None:
            return self._module.state_dict()
        raise KeyError(
            f"{key!r} is not in this dictionary: weights, optimizers and counters of a checkpoint are "
            "written by themselves; add plain data under names of your own"
        )

    def added(self) -> tuple[dict[str, Any], list[str]]:
        """What is to be written, and lines on what is not."""
        lines = []
        if "state_dict" in self:
            lines.append("on_save_checkpoint sets 'state_dict': checkpoints have all weights anyway")
        found = {key: value for key, value in self.items() if key not in _READ_ONLY}
        others = {key: type(value).__name__ for key, value in found.items() if not is_plain(value)}
        if others:
            named = ", ".join(f"{key!r} ({kind})" for key, kind in others.items())
            lines.append(f"warning: on_save_checkpoint adds {named}: no plain data, which is not written")
        return {key: value for key, value in found.items() if key not in others}, lines


def unlinked(path: Any) -> Any:
    """The checkpoint that a path of ``ModelCheckpoint`` is a link to; any other path as it is."""
    return os.path.realpath(path) if isinstance(path, (str, os.PathLike)) and os.path.islink(path) else path


def saved_by_hooks(path: Any) -> SavedByHooks:
    """What the hooks added to the checkpoint at a path; empty for weights alone, and for others' files."""
    folder = find_weights(unlinked(path))
    if not files.is_checkpoint(folder):
        return SavedByHooks()
    state = read_state(folder, read_manifest(folder))
    return SavedByHooks(state.get("hooks", {}).get("lightning", {}))


_modules: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The module that a run of this process trains, or has trained, by the run's folder."""


def note_module(folder: Any, module: Any) -> None:
    """A fit writes to this folder."""
    _modules[os.path.realpath(folder)] = module


def unwritten_arguments(path: Any) -> dict[str, Any]:
    """Copies of what a checkpoint does not keep of its module's arguments: objects that are no plain data.

    They are there where this process has written it, and the module still exists.
    """
    folder = Path(os.path.realpath(path)) if isinstance(path, (str, os.PathLike)) else Path()
    module = next((_modules[str(one)] for one in (folder, *folder.parents) if str(one) in _modules), None)
    given = {} if module is None else module.recorded_arguments
    return {name: copy.deepcopy(value) for name, value in given.items() if not is_plain(value)}


def hyperparameters_in(path: Any) -> dict[str, Any]:
    """What a module of LightningCLI, or of Lightning, kept by ``save_hyperparameters`` in a checkpoint."""
    folder = find_weights(unlinked(path))
    if not files.is_checkpoint(folder):
        found = dict(external_weights.read(folder).hparams)
    else:
        recorded = hparams_of(folder, read_manifest(folder))
        found = {name: recorded[name] for name in recorded.get("_saved", ()) if name in recorded}
    found.pop("_instantiator", None)
    return found
