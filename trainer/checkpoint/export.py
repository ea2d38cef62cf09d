"""Weights for use without paceline, and checkpoints of many ranks as those of one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import PacelineError, nearest
from ...strategies import Strategy, Weights
from ..plain_names import plain_name, plain_names_in
from ..utils.paths import as_path, writing
from . import pretrained
from .files import commit
from .files import format as files
from .files.integrity import verify
from .files.reading import read_manifest
from .merged import save_merged
from .pretrained import ADAPTER_CONFIG, ADAPTER_TENSORS, CONFIG
from .weights import model_shapes, recorded_hparams, stored_names, stored_shapes
from .writer import write_shard


def export(
    module: Any, strategy: Strategy, folder: Path, submodule: str | None, merged: bool = False
) -> str:
    """``Trainer.export`` of a ``TrainModule``. To be called on all ranks; rank 0 writes.

    Returns:
        What is to be said of it; "" for nothing.
    """
    parts = dict(module.named_modules())
    if submodule is not None and submodule not in parts:
        raise PacelineError(
            f"{type(module).__name__} has no submodule {submodule!r}",
            code="part-not-found",
            meant=nearest(submodule, parts),
        )
    part, prefix = (module, "") if submodule is None else (parts[submodule], f"{submodule}.")
    pretrained.refuse_hidden_adapters(part, submodule or "")
    everything = strategy.weights.full_tensors(module)
    tensors = {n.removeprefix(prefix): v for n, v in everything.items() if n.startswith(prefix)}
    if merged:
        return strategy.collectives.on_rank_zero(lambda: _merge(part, submodule, tensors, folder))
    strategy.collectives.on_rank_zero(lambda: _export_part(module, part, tensors, folder))
    return ""


def _merge(part: nn.Module, submodule: str | None, tensors: dict[str, Tensor], folder: Path) -> str:
    if not pretrained.is_adapted(part):
        raise PacelineError(
            f"{submodule or 'the module'} is no PeftModel", code="export-not-possible", fix="merged=False"
        )
    _make(folder)
    return save_merged(pretrained.describe(part, submodule or ""), tensors, folder)


def _export_part(module: Any, part: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    if pretrained.is_adapted(part):
        _make(folder)
        pretrained.save_adapters(part, tensors, folder)
        return
    # Tied weights are written once, under their first name, as safetensors has it.
    once = {n for n, _ in [*part.named_parameters(), *part.named_buffers()]}
    hparams, _ = recorded_hparams(module)
    about = {"class": f"{type(part).__module__}:{type(part).__qualname__}", "hparams": hparams}
    _write(folder, {n: v for n, v in tensors.items() if n in once}, about)
    if part is not module and pretrained.has_own_config(part):
        pretrained.save_own_config(part, folder)


class StoredPart(NamedTuple):
    """A part of a module in a checkpoint.

    Attributes:
        source: The checkpoint.
        manifest: Its manifest.
        described: What ``describe_parts`` said of it; empty for other parts.
        names: Of its tensors: by the name in the part, the one they are stored under.
    """

    source: Path
    manifest: dict[str, Any]
    described: dict[str, Any]
    names: dict[str, str]

    def tensors(self, wanted: Mapping[str, str | None] | None = None) -> dict[str, Tensor]:
        """Its tensors: all, or under other names the stored ones that are given."""
        return _loaded(self.source, self.manifest, self.names if wanted is None else wanted)


def stored_part(
    source: Path, submodule: str | None, compared: Callable[[int], object] | None = None
) -> StoredPart:
    """A part of the module in a checkpoint, which is verified.

    Args:
        source: The checkpoint.
        submodule: By its dotted name; None: the whole module.
        compared: Called with the size of each part that was verified, in bytes.

    Raises:
        CheckpointError: for a damaged checkpoint.
        PacelineError: when there is no such submodule, or it cannot be had without the module.
    """
    from .files.schema import check_manifest  # imports pydantic

    manifest = verify(source, compared=compared)
    check_manifest(source, manifest)
    files.warn_of_unlisted(source, manifest)
    prefix = "model." if submodule is None else f"model.{submodule}."
    shapes = stored_shapes(source, manifest)
    of_model = [name.removeprefix("model.") for name in shapes if name.startswith(prefix)]
    names = stored_names(of_model, shapes, manifest)
    if not names:
        parts = {name.split(".")[0] for name in model_shapes(shapes)}
        raise PacelineError(
            f"the checkpoint has no submodule {submodule!r}",
            code="part-not-found",
            where=str(source),
            allowed=", ".join(sorted(parts)),
            meant=nearest(submodule or "", parts),
        )
    described = manifest["module"].get("pretrained", {}).get(submodule, {})
    if "why_not" in described:
        raise _not_from_a_checkpoint(source, str(submodule), described["why_not"], manifest)
    inner = prefix.removeprefix("model.")
    return StoredPart(source, manifest, described, {n.removeprefix(inner): s for n, s in names.items()})


def export_checkpoint(
    source: Path, folder: Path, submodule: str | None, compared: Callable[[int], object] | None = None
) -> Path:
    """The weights of a checkpoint as ``Trainer.export`` writes a module's; no module is needed.

    Args:
        source: The checkpoint.
        folder: Where the files go.
        submodule: Only this part; None: all.
        compared: Called with the size of each part that was verified, in bytes.

    Raises:
        CheckpointError: for a damaged checkpoint.
        PacelineError: when there is no such submodule.
    """
    folder = as_path(folder, "export")
    part = stored_part(source, submodule, compared)
    if "adapters" in part.described:
        for adapter, content in part.described["adapters"].items():
            wanted = {name: part.names.get(full) for name, full in content["tensors"].items()}
            place = pretrained.adapter_folder(folder, adapter)
            _write_files(place, part.tensors(wanted), ADAPTER_TENSORS, {ADAPTER_CONFIG: content["config"]})
        pretrained.refer_to_base(folder)
        return folder
    about = {k: part.manifest["module"][k] for k in ("class", "hparams")}
    if submodule is not None:
        about["submodule"] = submodule
    _write(folder, part.tensors(), about, part.described.get("config"))
    return folder


def export_merged(
    source: Path,
    folder: Path,
    submodule: str,
    dtype: str | None = None,
    compared: Callable[[int], object] | None = None,
) -> str:
    """A model of transformers with its adapter merged into it, as ``save_merged`` writes it.

    Args:
        source: The checkpoint.
        folder: Where the files go.
        submodule: The ``PeftModel``.
        dtype: Of the weights in the file, as torch calls it; None: of the base's.
        compared: Called with the size of each part that was verified, in bytes.

    Raises:
        CheckpointError: for a damaged checkpoint.
        PacelineError: when there is no such submodule, and where it cannot be merged.
    """
    folder = as_path(folder, "export")
    part = stored_part(source, submodule, compared)
    chosen = None if dtype is None else getattr(torch, dtype)
    return save_merged(part.described, part.tensors(), folder, chosen)


def pretrained_part(source: Path, submodule: str | None) -> str:
    """The part of a checkpoint's module that ``from_pretrained`` of Hugging Face is to read.

    Args:
        source: The checkpoint.
        submodule: By its dotted name; None: the only one.

    Raises:
        PacelineError: where that is no model of Hugging Face, and for None with several.
    """
    found = read_manifest(source)["module"].get("pretrained", {})
    outer = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if submodule is None and len(outer) == 1:
        return str(outer[0])
    if submodule is None or submodule not in found:
        which = f", and {submodule!r} is none" if submodule is not None else ""
        raise PacelineError(
            "--to hf writes a model of transformers or of peft"
            + (which or (", and there are several" if outer else ", and there is none")),
            code="export-not-possible",
            where=str(source),
            allowed=", ".join(f"--submodule {name}" for name in found) or None,
            fix=None if found else "--to safetensors writes the weights of any module",
        )
    return submodule


def _loaded(source: Path, manifest: dict[str, Any], wanted: Mapping[str, str | None]) -> dict[str, Tensor]:
    """Tensors of a checkpoint by other names than those they are stored under."""
    stored = {name: other for name, other in wanted.items() if other is not None}
    if len(stored) < len(wanted):
        raise files.CheckpointError(
            "the manifest names tensors of an adapter that the checkpoint does not hold",
            code="checkpoint-damaged",
            where=str(source),
            got=", ".join(name for name in wanted if name not in stored),
        )
    tensors = Weights().load_tensors(files.tensor_files(source, manifest), stored.values())
    return {name: tensors[other] for name, other in stored.items()}


def _not_from_a_checkpoint(
    source: Path, submodule: str, why: str, manifest: dict[str, Any]
) -> PacelineError:
    name = manifest["module"]["class"].rpartition(":")[2].rpartition(".")[2]
    return PacelineError(
        f"{submodule!r} cannot be exported from a checkpoint alone",
        code="export-not-possible",
        where=str(source),
        got=why,
        fix=f"{name}.load_from_checkpoint(path) and save_pretrained(folder) of its {submodule}; or "
        f"trainer.export(folder, {submodule!r}) after the fit",
    )


def _make(folder: Path) -> None:
    with writing("the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)


def _write(
    folder: Path, tensors: dict[str, Tensor], about: dict[str, Any], config: str | None = None
) -> None:
    """``model.safetensors`` and ``config.json``, which is ``about`` unless the part has its own."""
    _write_files(
        folder, tensors, "model.safetensors", {CONFIG: config or json.dumps(about, indent=1) + "\n"}
    )


def _write_files(folder: Path, tensors: dict[str, Tensor], name: str, texts: dict[str, str]) -> None:
    """A safetensors file and texts, each appearing whole."""
    _make(folder)
    kept = {n: v.detach().to("cpu", copy=True).contiguous() for n, v in tensors.items()}
    with writing("the weights", folder):
        commit.save_tensors(kept, folder / f".{name}", {"format": "pt"})
        for file, text in texts.items():
            commit.write_synced(folder / f".{file}", text.encode())
        for file in (name, *texts):
            os.replace(folder / f".{file}", folder / file)


def consolidate(source: Path, target: Path, compared: Callable[[int], object] | None = None) -> Path:
    """Write a checkpoint of many ranks again as one device would have: a run can resume from it.

    What a rank kept to itself (random states, its place in the data) stays as it was. Weights of a compiled
    part that earlier versions wrote with ``_orig_mod`` in their names get their plain names.

    Args:
        source: The checkpoint.
        target: The folder of the new one.
        compared: Called with the size of each part that was verified, in bytes.

    Raises:
        CheckpointError: for a damaged checkpoint, and where ``target`` exists.
        PacelineError: where it cannot be written.
    """
    target = as_path(target, "consolidate")
    manifest = verify(source, compared=compared)
    files.warn_of_unlisted(source, manifest)
    if target.exists():
        raise files.CheckpointError(
            "a checkpoint is never overwritten", code="file-exists", where=str(target)
        )
    stored = files.tensor_files(source, manifest)
    tensors = Weights().load_tensors(stored, stored_shapes(source, manifest))
    tensors = {plain_name(name): value for name, value in tensors.items()}
    shard = Weights().shard(str(target), tensors, lambda name, tensor: tensor)
    state = plain_names_in((source / files.STATE).read_text())
    with writing("the checkpoint", target):
        commit.begin(target)
        entries = write_shard(target, shard)
        commit.write_synced(commit.staging_of(target) / files.STATE, state.encode())
        kept = {k: v for k, v in manifest.items() if k not in ("format", "files", "block")}
        commit.commit(target, kept, entries)
    return target
