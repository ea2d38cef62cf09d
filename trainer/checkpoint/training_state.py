"""A checkpoint's training state in torch's own forms, for a loop or a trainer that is not this one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

from ...errors import PacelineError
from ...strategies import Weights
from ...strategies.tensors.tensor_state import by_parameter
from ..utils.paths import as_path
from .files import format as files
from .files.integrity import verify
from .files.reading import read_state
from .files.schema import check_manifest
from .weights import stored_shapes

FILE = "checkpoint.pt"
_MODEL = "model."


def export_training_state(
    source: Path,
    folder: Path,
    to: Literal["torch", "dcp"],
    submodule: str | None = None,
    compared: Callable[[int], object] | None = None,
) -> Path:
    """The weights as they were trained, the optimizers' states and the counters.

    Both forms are a dict: ``model``, a state dict; ``optimizer`` (of further ones ``optimizer_1`` and so
    on); ``progress``, with ``global_step``, ``epoch`` and ``samples``. A checkpoint of weights alone has no
    optimizer. Tied weights are there under each of their names. With a submodule, the optimizer's groups
    are those that hold its parameters.

    Args:
        source: The checkpoint, of any strategy and number of ranks.
        folder: Where the files go.
        to: ``"torch"``: ``checkpoint.pt``, with what ``Optimizer.load_state_dict`` takes. ``"dcp"``: a
            folder of ``torch.distributed.checkpoint``, with what ``set_optimizer_state_dict`` takes.
        submodule: Only this part of the module, and its parameters' state; None: all.
        compared: Called with the size of each part that was verified, in bytes.

    Raises:
        CheckpointError: for a damaged checkpoint.
        PacelineError: for a submodule that is not there, for an optimizer's state in parts of bytes, and
            where nothing can be written.

    Source:
        https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
    """
    folder = as_path(folder, "export")
    manifest = verify(source, compared=compared)
    check_manifest(source, manifest)
    files.warn_of_unlisted(source, manifest)
    tensors = Weights().load_tensors(files.tensor_files(source, manifest), stored_shapes(source, manifest))
    inside = "" if submodule is None else f"{submodule}."
    model = _below(_MODEL + inside, tensors)
    if not model:
        raise PacelineError(
            f"the checkpoint has no submodule {submodule!r}", code="part-not-found", where=str(source)
        )
    content = read_state(source, manifest)
    model |= _below(inside, content["extra_state"])
    state: dict[str, Any] = {"model": model}
    if not manifest["weights_only"]:
        state |= _optimizers(source, tensors, content["optimizers"], inside)
    counters = manifest["counters"]
    state["progress"] = {name: counters[name] for name in ("global_step", "epoch", "samples")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (_write_file if to == "torch" else _write_dcp)(state, folder)
    except (OSError, RuntimeError, CheckpointException) as error:  # torch's writers raise all three
        got = " ".join(str(error).split())[:300]
        raise PacelineError(
            "nothing can be written here", code="cannot-write", where=str(folder), got=got
        ) from None
    return folder


def _below(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """Those whose names begin with it, by the rest of their names."""
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def _optimizers(
    source: Path, tensors: dict[str, Tensor], saved: dict[str, Any], inside: str
) -> dict[str, Any]:
    """Those that hold parameters below this name: ``optimizer``, ``optimizer_1`` and so on."""
    found: dict[str, Any] = {}
    for number, plain in saved.items():
        if plain.get("quantised"):
            raise PacelineError(
                "the optimizer's state is kept in fewer bits, which torch's own optimizers do not read",
                code="export-not-possible",
                where=str(source),
                fix="--to safetensors writes the weights alone",
            )
        named = _optimizer(_below(f"optim.{number}.", tensors), plain, inside)
        if named["param_groups"]:
            found[f"optimizer_{len(found)}" if found else "optimizer"] = named
    return found


def _optimizer(moments: dict[str, Tensor], plain: dict[str, Any], inside: str) -> dict[str, Any]:
    """As ``torch.distributed.checkpoint.state_dict`` has it: by the parameters' names."""
    groups = [
        group | {"params": [n[len(inside) :] for n in group["params"] if n.startswith(inside)]}
        for group in plain["groups"]
    ]
    return {
        "state": _below(inside, by_parameter(moments, plain)),
        "param_groups": [group for group in groups if group["params"]],
    }


def _by_number(named: dict[str, Any]) -> dict[str, Any]:
    """As ``Optimizer.state_dict`` has it: by the parameters' numbers, in the order of the groups."""
    names = [name for group in named["param_groups"] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    return {
        "state": {numbers[name]: state for name, state in named["state"].items()},
        "param_groups": [
            group | {"params": [numbers[name] for name in group["params"]]}
            for group in named["param_groups"]
        ],
    }


def _write_file(state: dict[str, Any], folder: Path) -> None:
    content = {n: _by_number(v) if n.startswith("optimizer") else v for n, v in state.items()}
    staging = folder / f".{FILE}"
    try:
        torch.save(content, staging)
        os.replace(staging, folder / FILE)
    except BaseException:
        with suppress(OSError):
            staging.unlink()
        raise


def _write_dcp(state: dict[str, Any], folder: Path) -> None:
    from torch.distributed import checkpoint

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # which is what no_dist means
        checkpoint.save(state, checkpoint_id=str(folder), no_dist=True)
