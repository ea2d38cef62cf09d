"""Weights in other formats: a Lightning ``.ckpt``, an Accelerate or exported folder, a bare state dict.

Pickles are read by torch's ``weights_only`` loader, which builds tensors and plain containers and calls
nothing else. Optimizers, loops and random states of others are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import PacelineError
from ..plain_names import plain_name
from .files.json_codec import decode

_PICKLES = (".ckpt", ".pt", ".pth", ".bin")
_IN_FOLDERS = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_USUAL = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_forward_module.")


@dataclass
class ExternalWeights:
    """What was read: a state dict, and a module's constructor arguments where they were kept."""

    tensors: dict[str, Tensor]
    hparams: dict[str, Any] = field(default_factory=dict)


def is_readable(path: Path) -> bool:
    """Whether this looks like weights that others wrote."""
    if path.is_file():
        return path.suffix in (*_PICKLES, ".safetensors")
    return any((path / name).is_file() for name in (*_IN_FOLDERS, *_INDEX))


def read(path: Path, safe: bool = True) -> ExternalWeights:
    """The weights in a file or folder.

    Args:
        path: Of it.
        safe: False: code of objects in a pickle is run.

    Raises:
        PacelineError: for one that is damaged, holds no weights, or wants to run code.
    """
    if path.is_dir():
        index = next((path / name for name in _INDEX if (path / name).is_file()), None)
        if index is None:
            found = read(next(path / name for name in _IN_FOLDERS if (path / name).is_file()), safe)
            return ExternalWeights(found.tensors, found.hparams or _exported_hparams(path))
        parts = _parts_of(index)
        return ExternalWeights({n: t for part in parts for n, t in read(path / part, safe).tensors.items()})
    if path.suffix == ".safetensors":
        return ExternalWeights(_read_safetensors(path))
    return _split(path, _read_pickle(path, safe))


def _exported_hparams(folder: Path) -> dict[str, Any]:
    """The constructor arguments that ``Trainer.export`` wrote; none for a folder that others wrote."""
    try:
        about = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    ours = isinstance(about, dict) and isinstance(about.get("class"), str)
    hparams = about.get("hparams") if ours else None
    return {k: decode(v) for k, v in hparams.items()} if isinstance(hparams, dict) else {}


def _parts_of(index: Path) -> list[str]:
    try:
        parts = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        outside = any(Path(part).name != part for part in parts)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PacelineError(
            "this is no index of weights: it has no weight_map",
            code="weights-file-unreadable",
            where=str(index),
        ) from None
    if outside:
        raise PacelineError(
            "the index names a file outside its folder", code="weights-file-unreadable", where=str(index)
        )
    missing = [part for part in parts if not (index.parent / part).is_file()]
    if missing:
        raise PacelineError(
            "a file that the index names is missing",
            code="weights-file-unreadable",
            where=str(index.parent / missing[0]),
        )
    return parts


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(str(path))
    except SafetensorError as error:
        raise PacelineError(
            "this is not a complete safetensors file",
            code="weights-file-unreadable",
            where=str(path),
            got=str(error),
        ) from None


def _read_pickle(path: Path, safe: bool) -> Any:
    import pickle

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=safe)
    except pickle.UnpicklingError as error:
        wants = re.search(r"GLOBAL (\S+)", str(error))
        raise PacelineError(
            "this file holds more than tensors and plain data; nothing of it was run",
            code="file-holds-code",
            where=str(path),
            got=f"it asks for {wants[1]}" if wants else str(error).splitlines()[0],
            fix="where you trust it, write its weights alone: torch.save(torch.load(path, "
            "weights_only=False)['state_dict'], 'weights.pt')",
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PacelineError(
            "this file cannot be read", code="weights-file-unreadable", where=str(path), got=text[:200]
        ) from None


def _split(path: Path, content: Any) -> ExternalWeights:
    """A state dict, bare or under a usual name (Lightning's has constructor arguments beside it)."""
    hparams: dict[str, Any] = {}
    under = [k for k in _USUAL if isinstance(content, dict) and isinstance(content.get(k), dict)]
    if under:
        found = content.get("hyper_parameters")
        hparams = {str(k): v for k, v in found.items()} if isinstance(found, dict) else {}
        content = content[under[0]]
    if not isinstance(content, dict) or not any(isinstance(v, Tensor) for v in content.values()):
        raise PacelineError(
            "there is no state dict in this file",
            code="weights-file-unreadable",
            where=str(path),
            got=f"keys {', '.join(map(str, list(content)[:6]))}"
            if isinstance(content, dict)
            else type(content).__name__,
            allowed=f"a dict of tensors by name, or one under {' or '.join(map(repr, _USUAL))}",
        )
    return ExternalWeights({str(k): v for k, v in content.items() if isinstance(v, Tensor)}, hparams)


def fit_names(
    tensors: dict[str, Tensor],
    mine: dict[str, Any],
    ties: Collection[Collection[str]] = (),
    strict: bool = True,
) -> dict[str, Tensor]:
    """The tensors under this module's names.

    Wrappers' prefixes are taken off; weights of a part serve a module that has no other.

    Args:
        tensors: By the file's names.
        mine: The module's, by its names.
        ties: The names of each tensor that the module has under several: files have one of them.
        strict: Whether all names are to agree; else the prefix with which most weights fit is taken.
    """
    plain = {_unwrapped(name): value for name, value in tensors.items()}
    candidates: list[dict[str, Tensor]] = []
    for prefix in ["", *sorted({f"{name.partition('.')[0]}." for name in mine})]:
        renamed = _under_all_names({prefix + name: value for name, value in plain.items()}, ties)
        if renamed.keys() == mine.keys():
            return renamed
        candidates.append(renamed)
    if not strict:
        return max(candidates, key=lambda found: sum(is_fit(n, v.shape, mine) for n, v in found.items()))
    return _under_all_names(tensors if tensors.keys() & mine.keys() else plain, ties)


def is_fit(name: str, shape: Sequence[int], mine: Mapping[str, Tensor]) -> bool:
    """Whether the module has a tensor of this name and shape."""
    return name in mine and list(mine[name].shape) == list(shape)


def _under_all_names(tensors: dict[str, Tensor], ties: Collection[Collection[str]]) -> dict[str, Tensor]:
    found = dict(tensors)
    for names in ties:
        present = next((name for name in names if name in tensors), None)
        if present is not None:
            found |= {name: tensors[present] for name in names if name not in tensors}
    return found


@cache
def _unwrapped(name: str) -> str:
    name = plain_name(name)
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper).replace(f".{wrapper}", ".")
    return name
