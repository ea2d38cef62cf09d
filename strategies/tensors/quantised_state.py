"""Moments in 8 or 4 bits, as torchao's optimizers keep them, as plain tensors for checkpoints and back.

Such a moment is a tensor subclass that holds codes, one scale for each block of numbers, and a table. They
are written as ``<parameter>.<key>:codes`` and so on, always of the whole parameter: blocks are cut out of
it as it lies in memory, so that the blocks of all ranks' rows, one after another, are those of one device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import PacelineError
from .sharding import local_part, whole

_PACKAGE = "torchao"
_TABLE = "qmap"  # a table, the same on all ranks; the others' numbers are the parameter's, in its order
_Maker = Callable[[dict[str, Tensor], torch.Size], Tensor]
_SHAPE = {"shape": True}  # in a subclass's context: of what the rank has


def take_apart(
    tensors: dict[str, Tensor], parameters: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Plain tensors in the place of subclasses, and what the subclasses are. On all ranks.

    Args:
        tensors: By ``<parameter>.<key>``.
        parameters: The module's, by name.

    Raises:
        PacelineError: for a subclass that is not torchao's, and one that some ranks have and others not.
    """
    found: dict[str, Tensor] = {}
    described: dict[str, Any] = {}
    sharded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        local = local_part(tensor)
        if hasattr(tensor, "to_local"):
            sharded[name] = local
        if not _is_subclass(local):
            found[name] = tensor
        elif name not in sharded:
            inner, described[name] = _parts(name, local)
            found |= {f"{name}:{key}": value for key, value in inner.items()}
    for name, inner, description in _gathered(sharded, parameters):
        found.pop(name, None)
        described[name] = description
        found |= {f"{name}:{key}": value for key, value in inner.items()}
    return found, described


def put_together(
    tensors: dict[str, Tensor], described: dict[str, Any], parameters: dict[str, Any]
) -> dict[str, Tensor]:
    """What ``take_apart`` was given, for parameters that may be sharded in another way. On all ranks.

    Where a block would be cut, the moment's numbers are kept as plain ones.

    Args:
        tensors: What it gave: whole ones, or codes that are sharded as their parameter.
        described: What it gave.
        parameters: The module's, by name.

    Raises:
        PacelineError: for a class that is none of torchao's.
    """
    found = dict(tensors)
    for name, description in described.items():
        inner = {key: found.pop(f"{name}:{key}") for key in description["parts"]}
        parameter = parameters[name.rpartition(".")[0]]
        make = _maker(name, description)
        if hasattr(parameter, "to_local"):
            found[name] = _sharded(inner, parameter, make)
        else:
            inner = {key: value.to(parameter.device) for key, value in inner.items()}
            found[name] = make(inner, parameter.shape)
    return found


def _is_subclass(tensor: Tensor) -> bool:
    return hasattr(tensor, "__tensor_flatten__")


def _parts(name: str, tensor: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The plain tensors in a subclass, and what else is to be known of it."""
    kind = type(tensor)
    if kind.__module__.partition(".")[0] != _PACKAGE:
        raise PacelineError(
            "a checkpoint cannot hold this optimizer's state",
            code="optimizer-not-supported",
            got=f"{name} is a {kind.__module__}.{kind.__qualname__}",
            allowed="plain tensors, DTensors, and the subclasses of torchao.optim",
        )
    names, context = tensor.__tensor_flatten__()
    about = {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "parts": list(names),
        "context": [_plain(value) for value in context],
    }
    return {key: getattr(tensor, key) for key in names}, about


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return _SHAPE if isinstance(value, (tuple, list)) else value


def _maker(name: str, description: dict[str, Any]) -> _Maker:
    """Makes a subclass of its plain tensors, for a parameter of that shape."""
    module, _, kind = str(description["class"]).partition(":")
    found: Any = None
    if module.partition(".")[0] == _PACKAGE:
        try:
            found = getattr(importlib.import_module(module), kind, None)
        except ImportError as error:
            raise PacelineError(
                "the checkpoint holds the state of an optimizer of torchao, which cannot be imported",
                code="package-missing",
                got=str(error),
                fix="pip install torchao",
            ) from None
    if not (isinstance(found, type) and issubclass(found, Tensor)):
        raise PacelineError(
            "the checkpoint names a class of tensors that is none",
            code="checkpoint-damaged",
            got=f"{name}: {kind}",
        )
    unflatten: Any = found.__tensor_unflatten__  # type: ignore[attr-defined]

    def make(inner: dict[str, Tensor], shape: torch.Size) -> Tensor:
        context = [_own(value, shape) for value in description["context"]]
        made: Tensor = unflatten(inner, context, shape, None)
        return made

    return make


def _own(value: Any, shape: torch.Size) -> Any:
    if value == _SHAPE:
        return shape
    return getattr(torch, value["dtype"]) if isinstance(value, dict) else value


# -- shards ----------------------------------------------------------------------------------------


def _share(name: str, local: Tensor) -> dict[str, Any]:
    """What the other ranks are to know of this rank's part; codes of its shape stay where they are."""
    share: dict[str, Any] = {"numbers": local.numel(), "about": None, "codes": {}, "others": {}}
    if _is_subclass(local):
        inner, share["about"] = _parts(name, local)
        for key, value in inner.items():
            if value.shape == local.shape and key != _TABLE:
                share["codes"][key] = value.dtype
            else:
                share["others"][key] = value.cpu()
    return share


def _gathered(
    sharded: dict[str, Tensor], parameters: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Tensor], dict[str, Any]]]:
    """Of each moment that is a subclass on a rank: its name, its plain tensors, what it is."""
    if not sharded:
        return
    mesh, dimension = _mesh_of(parameters[next(iter(sharded)).rpartition(".")[0]])
    group = mesh.get_group(dimension)
    everyone: list[dict[str, Any]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everyone, {n: _share(n, part) for n, part in sharded.items()}, group=group)
    for name, local in sharded.items():
        shares = [one[name] for one in everyone if one[name]["numbers"]]  # a rank may have no row
        quantised = [share for share in shares if share["about"] is not None]
        if not quantised:
            continue
        if len(quantised) < len(shares):
            raise PacelineError(
                "a checkpoint cannot hold a moment that is in few bits on some ranks only",
                code="optimizer-not-supported",
                got=name,
                allowed="on each rank a number of values that is a multiple of block_size, of 4096 or more",
                fix="another block_size= of the optimizer, or a strategy that leaves parameters whole",
            )
        first = quantised[0]
        inner = {
            key: value if key == _TABLE else torch.cat([share["others"][key] for share in quantised])
            for key, value in first["others"].items()
        }
        for key, dtype in first["codes"].items():
            own = getattr(local, key) if _is_subclass(local) else local.to(dtype)
            inner[key] = _sharded_like(parameters[name.rpartition(".")[0]], own)
        yield name, inner, first["about"]


def _sharded(inner: dict[str, Tensor], parameter: Any, make: _Maker) -> Tensor:
    """The moment of a sharded parameter; in plain numbers where a rank's rows cut a block."""
    rows, row = parameter.shape[0], parameter.shape[1:].numel()
    mesh, dimension = _mesh_of(parameter)
    ranks, rank = mesh.size(dimension), mesh.get_local_rank(dimension)
    most = -(-rows // ranks)  # as torch.chunk cuts them
    starts = [min(n * most, rows) * row for n in range(ranks + 1)]
    block = rows * row // inner["scale"].numel()
    local = parameter.to_local()
    if any(start % block for start in starts):
        moment: Any = make({key: whole(value) for key, value in inner.items()}, parameter.shape)
        plain = moment.dequantize().reshape(rows * row)[starts[rank] : starts[rank + 1]]
        return _sharded_like(parameter, plain.view(local.shape).to(local.device, parameter.dtype))
    if not local.numel():
        return _sharded_like(parameter, torch.zeros_like(local))

    def mine(key: str, value: Any) -> Tensor:
        if hasattr(value, "to_local"):
            part: Tensor = value.to_local()
        elif key == _TABLE:
            part = value
        else:
            each = rows * row // value.numel()  # numbers that one of these is for
            part = value.reshape(-1)[starts[rank] // each : starts[rank + 1] // each].clone()
            part = part.view(local.shape) if value.shape == parameter.shape else part
        return part.to(local.device)

    return _sharded_like(parameter, make({k: mine(k, v) for k, v in inner.items()}, local.shape))


def _mesh_of(parameter: Any) -> tuple[Any, int]:
    """The ranks that a parameter lies on, and over which dimension of them it is sharded."""
    sharded = [n for n, placement in enumerate(parameter.placements) if placement.is_shard()]
    return parameter.device_mesh, sharded[-1]


def _sharded_like(parameter: Any, local: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
