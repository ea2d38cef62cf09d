"""What a run changes of its module and optimizers beside values, so that a resume can make it again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...strategies import Strategy
from ...strategies.tensors.sharding import is_sharded
from ...strategies.torch_internals import buffers_of, loads_by_itself
from ...strategies.trained import TrainedParameters
from ..plain_names import plain_name

_SHOWN = 6


class ModuleChanges:
    """Which parameters are trained, the shapes of buffers, and parameter groups: as they were, and are.

    Args:
        module: The user's, as its constructor and ``configure_optimizers`` leave it.
        strategy: Of the run.
        optimizers: Of the run.
        trained: Learns what a checkpoint changes; None where the strategy does not mind.
    """

    def __init__(
        self,
        module: nn.Module,
        strategy: Strategy,
        optimizers: Sequence[Optimizer],
        trained: TrainedParameters | None,
    ) -> None:
        self._module, self._strategy, self._optimizers = module, strategy, optimizers
        self._trained = trained
        self._flags, self._shapes = _flags(module), _shapes(module)
        self._buffers = {n: buffer.shape for n, buffer in _buffers(module, module.state_dict()).items()}
        self._groups = [[group["params"][:] for group in o.param_groups] for o in optimizers]
        self._warned = False

    def state_dict(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """The names that are trained, or not, otherwise than at first, and the dtypes of other buffers.

        Args:
            tensors: Of the module's state dict.
        """
        before, now = self._flags, _flags(self._module)
        buffers = _buffers(self._module, tensors)
        shapes = {name: buffer.shape for name, buffer in buffers.items()}
        names = [n for n in {**self._buffers, **shapes} if self._buffers.get(n) != shapes.get(n)]
        return {
            "unfrozen": [name for name, flag in now.items() if flag and before.get(name) is False],
            "frozen": [name for name, flag in now.items() if not flag and before.get(name)],
            "buffers": {n: str(buffers[n].dtype)[6:] if n in buffers else None for n in names},
        }

    def load_state_dict(self, state: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        """Make the changes again, before values are loaded.

        Args:
            state: What ``state_dict`` gave; empty: nothing was changed.
            shapes: Of the stored tensors of the module, by name.
        """
        make_buffers(self._module, state, shapes, self._strategy.device)
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            if name in state.get("unfrozen", ()):
                parameter.requires_grad_(True)
            if name in state.get("frozen", ()):
                parameter.requires_grad_(False)

    def add_groups(self, saved: Mapping[str, Any]) -> None:
        """Add parameter groups that a run added under way, where it is plain which; then tell the strategy.

        It is where the first groups hold the same parameters, and the others hold parameters that no
        optimizer has. Else nothing is added, and the groups are compared as they are.

        Args:
            saved: The state of each optimizer in the checkpoint.

        Raises:
            PacelineError: where the strategy cannot train what the checkpoint's run has trained.
        """
        parameters = dict(self._module.named_parameters())
        held = {id(p) for o in self._optimizers for group in o.param_groups for p in group["params"]}
        for index, optimizer in enumerate(self._optimizers):
            then = [group["params"] for group in saved.get(str(index), {"groups": []})["groups"]]
            count = len(optimizer.param_groups)
            if len(then) <= count:
                continue
            _, now = self._strategy.weights.optimizer_state(self._module, optimizer)
            names = [name for group in then[count:] for name in group]
            found = [parameters[name] for name in names if name in parameters]
            same = [group["params"] for group in now["groups"]] == then[:count]
            if same and len({id(p) for p in found} - held) == len(names):
                for group in then[count:]:
                    optimizer.add_param_group({"params": [parameters[name] for name in group]})
        if self._trained is not None:
            self._trained.follow()

    def warn(self) -> None:
        """Say once what this run has made that no resume can make again, where there is any."""
        if self._warned or not self._strategy.environment.is_global_zero:
            return
        now = _shapes(self._module)
        found = [f"{name}: added" for name in now if name not in self._shapes]
        found += [f"{name}: removed" for name in self._shapes if name not in now]
        found += [f"{n}: of another shape" for n in now if n in self._shapes and now[n] != self._shapes[n]]
        if any(map(loads_by_itself, self._module.modules())):
            found = []
        ours = {id(parameter) for parameter in self._module.parameters()}
        for optimizer, before in zip(self._optimizers, self._groups, strict=True):
            groups = [[*map(id, group["params"])] for group in optimizer.param_groups]
            held = [one in ours for group in groups for one in group]
            if not any(held):  # ZeRO's: they update flat copies
                continue
            if groups[: len(before)] != [[*map(id, group)] for group in before]:
                found.append(f"{type(optimizer).__name__}: its first groups hold other parameters")
            if not all(held):
                what = f"{held.count(False)} parameter{'s' if held.count(False) > 1 else ''}"
                found.append(f"{type(optimizer).__name__}: {what} that the module does not have")
        if found:
            self._warned = True
            more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            warnings.warn(
                "a checkpoint of this run cannot be resumed: the module's constructor and "
                f"configure_optimizers do not make what the run has changed ({'; '.join(found[:_SHOWN])}"
                f"{more}). Let them make it, or a load_state_dict pre-hook of the module",
                stacklevel=2,
            )


def make_buffers(
    module: nn.Module, state: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], device: torch.device
) -> None:
    """Give buffers the shapes of the checkpoint, where its run had changed them.

    Args:
        module: The user's.
        state: ``ModuleChanges.state_dict``.
        shapes: Of the stored tensors of the module, by name.
        device: Where new buffers are made.
    """
    owners = {plain_name(path): part for path, part in module.named_modules(remove_duplicate=False)}
    for name, dtype in state.get("buffers", {}).items():
        path, _, last = name.rpartition(".")
        owner = owners.get(path)
        if owner is None:
            continue  # what differs is reported by name
        if dtype is None:
            if last in buffers_of(owner):
                setattr(owner, last, None)
        elif name in shapes:
            if vars(owner).get(last, owner) is None:  # an attribute until it was registered
                delattr(owner, last)
            if last in buffers_of(owner) or not hasattr(owner, last):
                empty = torch.empty(tuple(shapes[name]), dtype=getattr(torch, dtype), device=device)
                owner.register_buffer(last, empty)


def _flags(module: nn.Module) -> dict[str, bool]:
    return {name: p.requires_grad for name, p in module.named_parameters(remove_duplicate=False)}


def _shapes(module: nn.Module) -> dict[str, torch.Size | None]:
    named = module.named_parameters(remove_duplicate=False)
    return {name: None if is_sharded(p) else p.shape for name, p in named}


def _buffers(module: nn.Module, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {n: t for n, t in tensors.items() if isinstance(t, Tensor) and n not in parameters}
