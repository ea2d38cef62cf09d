"""The files of ``Fabric.save``: what ``torch.load`` reads, with whole tensors under every strategy."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import PacelineError, listed
from ....strategies import Weights
from ....strategies.tensors.sharding import is_sharded, whole
from ....strategies.tensors.tensor_state import by_parameter
from .shared import Shared
from .wrappers import FabricModule, FabricOptimizer

Filter = Callable[[str, Any], bool]


class Checkpoints(Shared):
    """``save``, ``load`` and ``load_raw``: to be called on all ranks."""

    _models: list[FabricModule]

    def save(self, path: Any, state: Mapping[str, Any], filter: Mapping[str, Filter] | None = None) -> None:
        """Write a file, on rank 0, in one operation; ``torch.load`` reads it.

        Args:
            path: Of the file.
            state: Modules, optimizers, loaders, whatever else has a ``state_dict``, and plain data.
            filter: By a key of ``state``, which of its names are kept.

        Raises:
            PacelineError: for a filter of a key that is none.
        """
        written, filters = {name: self._state_of(value) for name, value in state.items()}, filter or {}
        if set(filters) - set(state) or not all(map(callable, filters.values())):
            raise PacelineError(
                "filter has functions, by keys of the state",
                code="fabric-usage",
                got=listed(list(filters)),
                allowed=listed(list(state)),
            )
        for name, keep in filters.items():
            written[name] = {key: value for key, value in written[name].items() if keep(key, value)}
        self.ranks.on_rank_zero(lambda: _write(Path(path), written))

    def load(
        self, path: Any, state: Any = None, strict: bool = True, *, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a file, Lightning's too, into the objects of ``state``.

        Args:
            path: Of the file.
            state: As for ``save``, or None; values that keep no state are replaced in it.
            strict: Whether the file must have all keys, and modules' state dicts the same names.
            weights_only: False allows what a pickle runs when it is loaded; for a file that you trust.

        Returns:
            What was not asked for; everything where there is no ``state``.

        Raises:
            PacelineError: for a file that is missing, holds other objects, or lacks keys.
        """
        found: dict[str, Any] = _read(Path(path), weights_only is not False)
        missing = [key for key in state or () if key not in found]
        if missing and strict:
            raise PacelineError(
                "the checkpoint does not have all that it is to be loaded into",
                code="checkpoint-mismatch",
                where=str(path),
                got=f"without {listed(missing)}; it has {listed(list(found))}",
                fix="fabric.load(path, state, strict=False)",
            )
        for name, value in dict(state or {}).items():
            if name in found and hasattr(value, "load_state_dict"):
                self._restore(value, found.pop(name), strict)
            elif name in found:
                state[name] = found.pop(name)
        self.barrier()
        return found

    def load_raw(
        self, path: Any, obj: Any, strict: bool = True, *, weights_only: bool | None = None
    ) -> None:
        """Read a file that holds the state dict of one module or optimizer.

        Args:
            path: Of the file.
            obj: The module or optimizer.
            strict: Whether a module must have the same names.
            weights_only: As for ``load``.
        """
        self._restore(obj, _read(Path(path), weights_only is not False), strict)
        self.barrier()

    def _restore(self, owner: Any, saved: Any, strict: bool) -> None:
        """Put a state back into its owner.

        Raises:
            PacelineError: where names are missing and the strategy needs all of them.
        """
        kind, in_parts = type(owner), self._in_parts
        if issubclass(kind, FabricModule) and in_parts:
            absent = sorted(set(owner.state_dict()) - set(saved))
            if absent:
                raise PacelineError(
                    f"strategy {self._strategy.name!r} loads whole state dicts",
                    code="fabric-usage",
                    got=f"a checkpoint without {listed(absent)}",
                    fix="load it before fabric.setup",
                )
            self._strategy.weights.load_module(owner, saved)
        elif issubclass(kind, FabricOptimizer) and in_parts:
            self._load_optimizer(owner, saved)
        elif isinstance(owner, nn.Module):
            owner.load_state_dict(saved, strict=strict)
        else:
            owner.load_state_dict(saved)

    @property
    def _in_parts(self) -> bool:
        """Whether ranks hold parts of the weights or of the optimizer's state."""
        return type(self._strategy.weights) is not Weights

    def _state_of(self, value: Any) -> Any:
        if issubclass(type(value), FabricModule) and self._in_parts:
            plain = value.state_dict() if self._strategy.around_hooks is None else {}
            return {**plain, **self._strategy.weights.full_tensors(value)}
        if issubclass(type(value), FabricOptimizer) and self._in_parts:
            return self._optimizer_state(value)
        keeps_state = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
        return value.state_dict() if keeps_state else value

    def _optimizer_state(self, optimizer: FabricOptimizer) -> dict[str, Any]:
        """As ``Optimizer.state_dict``, with whole tensors."""
        tensors, plain = self._named_state(optimizer)
        mine = {name: whole(tensors[name]).cpu() for name in sorted(tensors)}
        held = self.ranks.all_gather([*mine])
        if any(names != held[0] for names in held):  # each rank has some
            mine = {name: value for part in self.ranks.all_gather(mine) for name, value in part.items()}
        named = by_parameter(mine, plain)
        numbers = {name: number for number, name in enumerate(_held(plain))}
        groups = [group | {"params": [numbers[n] for n in group["params"]]} for group in plain["groups"]]
        return {"state": {numbers[n]: named[n] for n in numbers if n in named}, "param_groups": groups}

    def _named_state(self, optimizer: FabricOptimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if optimizer.module is None:
            raise PacelineError(
                f"strategy {self._strategy.name!r} saves and loads optimizers of modules it has set up",
                code="fabric-usage",
                fix="model, optimizer = fabric.setup(model, optimizer)",
            )
        return self._strategy.weights.optimizer_state(optimizer.module, optimizer.optimizer)

    def _load_optimizer(self, optimizer: FabricOptimizer, saved: dict[str, Any]) -> None:
        names = _held(self._named_state(optimizer)[1])
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        named = dict(zip(numbers, names, strict=True))
        groups = [
            group | {"params": [named[n] for n in group["params"]]} for group in saved["param_groups"]
        ]
        plain: dict[str, Any] = {"groups": groups, "values": {}, "own_dtype": []}
        parameters, tensors = dict(optimizer.module.named_parameters()), {}
        for number, values in saved["state"].items():
            name = named[number]
            for key, value in values.items():
                if not isinstance(value, Tensor):
                    plain["values"][f"{name}.{key}"] = value
                    continue
                tensors[f"{name}.{key}"] = _placed_as(parameters[name], value)
                if key != "step" and value.dtype != parameters[name].dtype:
                    plain["own_dtype"].append(f"{name}.{key}")
        self._strategy.weights.load_optimizer(optimizer.module, optimizer.optimizer, tensors, plain)


def _held(plain: dict[str, Any]) -> list[str]:
    """The names of an optimizer's parameters, in the order in which torch numbers them."""
    return [name for group in plain["groups"] for name in group["params"]]


def _placed_as(parameter: Any, value: Tensor) -> Tensor:
    """A whole tensor in the shards of a parameter, where it has its shape and torch's shards."""
    if not hasattr(parameter, "placements") or not is_sharded(parameter) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    placed: Tensor = distribute_tensor(value.to(mesh.device_type), mesh, placements, src_data_rank=None)
    return placed


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.part")
    with staging.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staging, path)


def _read(path: Path, weights_only: bool) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=weights_only)
    except FileNotFoundError:
        raise PacelineError(
            "there is no such checkpoint", code="checkpoint-not-found", got=str(path)
        ) from None
    except pickle.UnpicklingError as error:
        if not weights_only:
            raise
        raise PacelineError(
            "the checkpoint holds more than tensors and plain data, and loading it may run code",
            code="file-holds-code",
            where=str(path),
            got=str(error).strip().splitlines()[0],
            fix="fabric.load(path, state, weights_only=False), for a file that you trust",
        ) from None
