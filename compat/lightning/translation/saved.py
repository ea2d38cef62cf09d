"""What is read from a checkpoint beside its weights."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from weakref import WeakValueDictionary

import torch

from ....trainer.checkpoint import external_weights
from ....trainer.checkpoint.files import format as files
from ....trainer.checkpoint.files.json_codec import is_plain
from ....trainer.checkpoint.files.reading import hparams_of, read_manifest, read_state
from ....trainer.checkpoint.weights import find_weights
from .checkpoint_file import checkpoint_at, weights_in


class Content(dict[str, Any]):
    """What ``on_load_checkpoint`` gets of a checkpoint: ``state_dict`` is read where it is asked for.

    Args:
        values: What hooks have added.
        weights: Returns the ``state_dict``.
    """

    def __init__(self, values: Mapping[str, Any], weights: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(values)
        self._weights = weights

    def __missing__(self, key: str) -> Any:
        if key == "state_dict":
            self[key] = self._weights()
            return self[key]
        raise KeyError(
            f"{key!r} is not in this dictionary: weights, optimizers and counters of a checkpoint are "
            "read by themselves; on_save_checkpoint may add data under other names"
        )


class Loaded:
    """A checkpoint that something is read from.

    Args:
        path: A folder, or a ``.ckpt`` file of this package's or of Lightning.
        weights_only: False: objects of any class are read from a file, which runs code of theirs.
        plugin: A ``CheckpointIO`` of the user, which reads the file; None: torch does.

    Attributes:
        path: The folder of a file, while it exists; else what was given.
        is_safe: Whether no code in a file is run.
    """

    def __init__(self, path: Any, weights_only: bool | None = None, plugin: Any = None) -> None:
        self._given, self.is_safe = path, weights_only is not False
        self._weights_only, self._plugin = weights_only, plugin
        self.path = checkpoint_at(path)

    @cached_property
    def file(self) -> dict[str, Any]:
        """What the file holds; empty for a folder, and for a file with objects that may not be read."""
        named = isinstance(self._given, (str, os.PathLike))
        if named and self._plugin is not None and not files.is_checkpoint(Path(self._given)):
            return dict(self._plugin.load_checkpoint(self._given, weights_only=self._weights_only))
        if not named or not os.path.isfile(self._given):
            return {}
        try:
            found = torch.load(self._given, map_location="cpu", weights_only=self.is_safe)
        except UnpicklingError:
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def folder(self) -> Path | None:
        """The checkpoint of this package's; None for weights alone, and for others' files."""
        found = find_weights(self.path)
        return found if files.is_checkpoint(found) else None

    def content(self) -> dict[str, Any]:
        """What ``on_load_checkpoint`` gets."""
        folder = None if self.file else self.folder
        if folder is None:
            return self.file
        state = read_state(folder, read_manifest(folder))
        return Content(state.get("hooks", {}).get("lightning", {}), lambda: weights_in(folder))

    def resumed(self, added: Mapping[str, Any], module: Any) -> dict[str, Any]:
        """What it gets when a run resumes, and the module has its weights already.

        Args:
            added: What hooks have added, of the folder.
            module: With the weights.
        """
        others = {} if self.is_safe else {n: v for n, v in self.file.items() if n != "state_dict"}
        return Content({**others, **added}, module.state_dict)

    def whole(self) -> dict[str, Any]:
        """What a file of the folder would hold, but for what was not written there."""
        assert self.folder is not None
        content = self.content()
        hparams = hparams_of(self.folder, read_manifest(self.folder))
        return {**content, "state_dict": content["state_dict"], "hyper_parameters": hparams}

    def objects(self, cls: type) -> dict[str, Any]:
        """Arguments of a constructor that are no plain data: a file has them, where it may be read."""
        if self.is_safe:
            return {}
        taken = inspect.signature(cls).parameters.values()
        takes_all = any(one.kind is one.VAR_KEYWORD for one in taken)
        names = {one.name for one in taken}
        kept = self.file.get("hyper_parameters", {}).items()
        return {n: v for n, v in kept if not is_plain(v) and (takes_all or n in names)}

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What a module of LightningCLI, or of Lightning, kept by ``save_hyperparameters``."""
        if self.folder is None:
            found = dict(external_weights.read(Path(self.path)).hparams)
        else:
            recorded = hparams_of(self.folder, read_manifest(self.folder))
            found = {name: recorded[name] for name in recorded.get("_saved", ()) if name in recorded}
        found.pop("_instantiator", None)
        return found


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
