"""Weights for use without paceline, and checkpoints of many ranks as those of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...errors import PacelineError, nearest
from ...strategies import Single, Strategy
from ...strategies.collectives import Collectives
from ..utils.paths import as_path
from . import format as files
from .integrity import verify
from .weights import model_shapes, recorded_hparams, stored_names, stored_shapes
from .writer import write_shard


def export(module: Any, strategy: Strategy, folder: Path, submodule: str | None) -> Path:
    """``Trainer.export`` of a ``TrainModule``. To be called on all ranks; rank 0 writes."""
    parts = dict(module.named_modules())
    if submodule is not None and submodule not in parts:
        raise PacelineError(
            f"{type(module).__name__} has no submodule {submodule!r}",
            meant=nearest(submodule, parts),
        )
    part, prefix = (module, "") if submodule is None else (parts[submodule], f"{submodule}.")
    everything = strategy.full_tensors(module)
    tensors = {n.removeprefix(prefix): v for n, v in everything.items() if n.startswith(prefix)}
    Collectives(strategy).on_rank_zero(lambda: _export_part(module, part, tensors, folder))
    return folder


def _export_part(module: Any, part: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    # Tied weights are written once, under their first name, as safetensors has it.
    once = {n for n, _ in [*part.named_parameters(), *part.named_buffers()]}
    hparams, _ = recorded_hparams(module)
    about = {"class": f"{type(part).__module__}:{type(part).__qualname__}", "hparams": hparams}
    _write(folder, {n: v for n, v in tensors.items() if n in once}, about)
    save_config = getattr(getattr(part, "config", None), "save_pretrained", None)
    if callable(save_config):
        save_config(str(folder))  # a Hugging Face model's own config.json, for its from_pretrained


def export_checkpoint(source: Path, folder: Path, submodule: str | None) -> Path:
    """The weights of a checkpoint as ``Trainer.export`` writes a module's; no module is needed.

    Raises:
        CheckpointError: for a damaged checkpoint.
        PacelineError: when there is no such submodule.
    """
    folder = as_path(folder, "export")
    manifest = verify(source)
    files.warn_of_unlisted(source, manifest)
    prefix = "model." if submodule is None else f"model.{submodule}."
    shapes = stored_shapes(source, manifest)
    of_model = [name.removeprefix("model.") for name in shapes if name.startswith(prefix)]
    names = stored_names(of_model, shapes, manifest)
    if not names:
        parts = {name.split(".")[0] for name in model_shapes(shapes)}
        raise PacelineError(
            f"the checkpoint has no submodule {submodule!r}",
            where=str(source),
            allowed=", ".join(sorted(parts)),
            meant=nearest(submodule or "", parts),
        )
    tensors = Single().load_tensors(files.tensor_files(source, manifest), names.values())
    about = {k: manifest["module"][k] for k in ("class", "hparams")}
    if submodule is not None:
        about["submodule"] = submodule
    inner = prefix.removeprefix("model.")
    _write(folder, {name.removeprefix(inner): tensors[stored] for name, stored in names.items()}, about)
    return folder


def _write(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """``model.safetensors`` and ``config.json``, each appearing whole."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PacelineError("weights cannot be written here", where=str(folder), got=str(error)) from None
    kept = {n: v.detach().to("cpu", copy=True).contiguous() for n, v in tensors.items()}
    weights, config = folder / ".model.safetensors", folder / ".config.json"
    files.save_tensors(kept, weights, {"format": "pt"})
    files.write_synced(config, (json.dumps(about, indent=1) + "\n").encode())
    for path in (weights, config):
        os.replace(path, folder / path.name.removeprefix("."))


def consolidate(source: Path, target: Path) -> Path:
    """Write a checkpoint of many ranks again as one device would have: a run can resume from it.

    What a rank kept to itself (random states, its place in the data) stays as it was.

    Raises:
        CheckpointError: for a damaged checkpoint, and where ``target`` exists.
    """
    target = as_path(target, "consolidate")
    manifest = verify(source)
    files.warn_of_unlisted(source, manifest)
    if target.exists():
        raise files.CheckpointError("a checkpoint is never overwritten", where=str(target))
    stored = files.tensor_files(source, manifest)
    tensors = Single().load_tensors(stored, stored_shapes(source, manifest))
    shard = Single().shard(str(target), tensors, lambda name, tensor: tensor)
    try:
        files.begin(target)
    except OSError as error:
        raise files.CheckpointError(
            "a checkpoint cannot be written here", where=str(target), got=str(error)
        ) from None
    entries = write_shard(target, shard)
    state = (source / files.STATE).read_bytes()
    files.write_synced(files.staging_of(target) / files.STATE, state)
    kept = {k: v for k, v in manifest.items() if k not in ("format", "files", "block")}
    files.commit(target, kept, entries)
    return target
