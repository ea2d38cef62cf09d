"""Module and optimizer state by name, for strategies that leave a module's parameters in place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import PacelineError, shown
from .quantised_state import put_together, take_apart

Take = Callable[[str, Tensor], Tensor]

# How an optimizer computes is its own, whoever wrote the state: that may have been on another device.
OWN_SETTINGS = ("params", "foreach", "fused", "capturable", "differentiable")


@dataclass
class Shard:
    """What one rank writes.

    Attributes:
        number: The rank's, from 1.
        tensors: Parts of tensors by the whole ones' names, on the CPU.
        offsets: Where each part lies in the whole.
    """

    number: int = 1
    tensors: dict[str, Tensor] = field(default_factory=dict)
    offsets: dict[str, list[int]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a state dict; its other values are plain."""
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def parameter_names(module: nn.Module) -> dict[int, str]:
    """Names by the parameters' ids."""
    return {id(p): name for name, p in module.named_parameters()}


def optimizer_state(module: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Moments by ``<parameter>.<key>``, and the rest: groups and plain values, by parameter name.

    Parameters that the module does not have are skipped.
    """
    names = parameter_names(module)
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    own_dtype: list[str] = []
    known = ((p, state) for p, state in optimizer.state.items() if id(p) in names)
    for parameter, state in known:
        for key, value in state.items():
            name = f"{names[id(parameter)]}.{key}"
            (tensors if isinstance(value, Tensor) else values)[name] = value
            if isinstance(value, Tensor) and value.dtype != parameter.dtype and key != "step":
                own_dtype.append(name)  # torch itself knows what a step is kept in
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        | {"params": [names[id(p)] for p in group["params"] if id(p) in names]}
        for group in optimizer.param_groups
    ]
    tensors, quantised = take_apart(tensors, dict(module.named_parameters()))
    plain = {"groups": groups, "values": values, "own_dtype": own_dtype}
    return tensors, plain | ({"quantised": quantised} if quantised else {})


def by_parameter(tensors: dict[str, Tensor], plain: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """``<parameter>.<key>`` as one dict for each parameter."""
    found: dict[str, dict[str, Any]] = {}
    for full, value in {**tensors, **plain["values"]}.items():
        name, _, key = full.rpartition(".")
        found.setdefault(name, {})[key] = value
    return found


def load_optimizer(
    module: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], plain: dict[str, Any]
) -> None:
    """Put back what ``optimizer_state`` gave."""
    names = parameter_names(module)
    content = optimizer.state_dict()
    parameters = {
        position: parameter
        for group, saved in zip(optimizer.param_groups, content["param_groups"], strict=True)
        for position, parameter in zip(saved["params"], group["params"], strict=True)
    }
    by_position = {position: names[id(p)] for position, p in parameters.items() if id(p) in names}
    tensors = put_together(tensors, plain.get("quantised", {}), dict(module.named_parameters()))
    by_name = by_parameter(tensors, plain)
    content["state"] = {i: by_name[n] for i, n in by_position.items() if n in by_name}
    for saved, group in zip(content["param_groups"], plain["groups"], strict=True):
        kept = {key: value for key, value in group.items() if key not in OWN_SETTINGS}
        for key, value in kept.items():
            if key in saved:
                check_kind(key, value, saved[key])
        saved.update(kept)
    optimizer.load_state_dict(content)
    # torch casts state to its parameter's dtype; what was kept in another stays in it.
    own = set(plain["own_dtype"])
    for position, kept in content["state"].items():
        state = optimizer.state[parameters[position]]
        for key, value in kept.items():
            if f"{by_position[position]}.{key}" in own:
                state[key] = value.to(state[key].device)


def check_kind(name: str, saved: Any, own: Any, lengths: bool = True) -> None:
    """See that a saved setting is of the kind that its owner has there: None takes any.

    Args:
        name: The setting's, for the error.
        saved: The value that was saved.
        own: The owner's own value.
        lengths: Tuples and lists are as long, too.

    Raises:
        TypeError: where it is not.
    """

    def kind(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return "number" if abs(value) < 2**63 else "a number too large"
        if isinstance(value, (float, Tensor)):
            return "number"
        if isinstance(value, (tuple, list)):
            kinds = [kind(item) for item in value]
            return kinds if lengths else [one for n, one in enumerate(kinds) if one not in kinds[:n]]
        return type(value).__name__

    lists = isinstance(saved, (tuple, list)) and isinstance(own, (tuple, list))
    empty = not lengths and lists and not (saved and own)
    if own is not None and not empty and kind(saved) != kind(own):
        raise TypeError(f"{name} is {shown(saved)}, and {shown(own)} here")


def load_tensors(
    files: Sequence[Path],
    names: Iterable[str],
    like: dict[str, Tensor] | None = None,
    group: Any = None,
) -> dict[str, Tensor]:
    """Read safetensors files with torch.distributed.checkpoint; see ``Weights.load_tensors``."""
    from torch.distributed.checkpoint import CheckpointException, load

    from .checkpoint_reader import ListedFilesReader

    reader = ListedFilesReader(files)
    stored: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {name: _empty(stored[name], (like or {}).get(name)) for name in names}
    with warnings.catch_warnings():  # there may be one process only
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)
        except CheckpointException as failed:
            rank, (error, _) = next(iter(failed.failures.items()))
            raise PacelineError(
                "the tensors of a checkpoint cannot be read",
                code="checkpoint-damaged",
                where=str(files[0].parent),
                got=f"on rank {rank}: {type(error).__name__}: {error}",
            ) from error
    return tensors


def _empty(stored: Any, like: Tensor | None) -> Tensor:
    from torch.distributed.tensor import DTensor

    if isinstance(like, DTensor) and like.shape == stored.size:
        return torch.empty_like(like, dtype=stored.properties.dtype)
    return torch.empty(stored.size, dtype=stored.properties.dtype)
