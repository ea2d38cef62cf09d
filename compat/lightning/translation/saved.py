"""What ``on_save_checkpoint`` added to a checkpoint."""

from __future__ import annotations

import os
from typing import Any

from ....trainer.checkpoint import external_weights
from ....trainer.checkpoint.files import format as files
from ....trainer.checkpoint.files.reading import hparams_of, read_manifest, read_state
from ....trainer.checkpoint.weights import find_weights


class SavedByHooks(dict[str, Any]):
    """What ``on_save_checkpoint`` gets: add plain data to it."""

    def __missing__(self, key: str) -> Any:
        raise KeyError(
            f"{key!r} is not in this dictionary: weights, optimizers and counters of a checkpoint are "
            "written by themselves; add plain data under names of your own"
        )


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
