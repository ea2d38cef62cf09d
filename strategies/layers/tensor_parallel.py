"""Tensor parallelism: the parameters of a layer are split over ranks, as ``TrainModule.parallelize`` says.

The splitting itself, its collectives and the loss over split logits are torch's
(https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html).
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import PacelineError, listed
from ..tensors.sharding import is_sharded, local_part, whole

AXIS = "tensor"
"""The name of the mesh dimension over which layers are split."""
_FIRST = 16
_FAR = 0.05  # of a gradient's norm: rounding is far below, a part of the sum far above


def is_compared(count: int) -> bool:
    """Whether ranks of a tensor group are compared this time: the first 16 times, then at powers of two.

    Args:
        count: Which time it is, from 1.

    Example:
        >>> [count for count in range(1, 70) if is_compared(count)][14:]
        [15, 16, 32, 64]
    """
    return count <= _FIRST or not count & (count - 1)


class _Place(NamedTuple):
    """Where a module holds a parameter."""

    part: nn.Module
    key: str
    name: str


class LayerSplit:
    """How the parameters of a module are split over the ranks of a tensor group.

    The module's ``parallelize(mesh)`` sees parameters without values, so that it does not matter whether
    they have any yet; ``apply`` splits those that have.

    Args:
        module: Its layers get the hooks of the plan; its parameters stay whole until ``apply``.
        mesh: The 1-D mesh of the tensor group.

    Raises:
        PacelineError: for a plan that splits nothing, or one of several tied parameters alone.
    """

    def __init__(self, module: nn.Module, mesh: Any) -> None:
        self._mesh = mesh
        places = _places(module)
        for parameter, held in places.items():
            bare = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            for place in held:
                setattr(place.part, place.key, bare)
        try:
            _call_plan(module, mesh)
            _refuse_replaced(module, places)
            found = {
                parameter: [_placements(place) for place in held] for parameter, held in places.items()
            }
        finally:
            for parameter, held in places.items():
                for place in held:
                    place.part.register_parameter(place.key, parameter)
        self._placements: dict[str, tuple[Any, ...]] = {}
        for parameter, placements in found.items():
            if any(other != placements[0] for other in placements):
                _refuse_tied([place.name for place in places[parameter]], placements)
            if placements[0] is not None:
                self._placements[places[parameter][0].name] = placements[0]
        if not self._placements:
            raise PacelineError(
                f"{type(module).__name__}.parallelize(mesh) splits no parameter",
                code="tensor-parallel-plan",
                fix="call torch's parallelize_module(self.model, mesh, plan) in it, with a plan by "
                "the names of named_modules()",
            )
        self._module = module

    def apply(self, part: nn.Module) -> None:
        """Split those parameters of ``part`` that the plan splits. Each rank has their whole values."""
        from torch.distributed.tensor import distribute_tensor

        own = set(part.parameters())
        for parameter, held in _places(self._module).items():
            how = self._placements.get(held[0].name)
            if how is not None and parameter in own and not is_sharded(parameter):
                split = distribute_tensor(parameter.detach(), self._mesh, how, src_data_rank=None)
                made = nn.Parameter(split, parameter.requires_grad)
                for place in held:
                    place.part.register_parameter(place.key, made)


def _places(module: nn.Module) -> dict[nn.Parameter, list[_Place]]:
    """Where each parameter is held: tied ones in several places."""
    found: dict[nn.Parameter, list[_Place]] = {}
    for prefix, part in module.named_modules():
        for key, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            found.setdefault(parameter, []).append(_Place(part, key, f"{prefix}.{key}" if prefix else key))
    return found


def _call_plan(module: nn.Module, mesh: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not be resolved")  # of torch's parallelize_module
        try:
            module.parallelize(mesh)  # type: ignore[operator]
        except UserWarning as unresolved:
            raise PacelineError(
                f"{type(module).__name__}.parallelize(mesh) names a layer that is not there",
                code="tensor-parallel-plan",
                got=str(unresolved).splitlines()[0],
                fix="a plan by the names of named_modules() of what parallelize_module is given",
            ) from None


def _refuse_replaced(module: nn.Module, places: dict[nn.Parameter, list[_Place]]) -> None:
    """Values are put back where they were: in a layer that is new they would be lost."""
    known = {(id(place.part), place.key) for held in places.values() for place in held}
    new = [
        place.name
        for held in _places(module).values()
        for place in held
        if (id(place.part), place.key) not in known
    ]
    if new:
        raise PacelineError(
            f"{type(module).__name__}.parallelize(mesh) puts new layers into the module",
            code="tensor-parallel-plan",
            got=", ".join(new[:6]),
            fix="build them in __init__ or configure_model, and only split them here",
        )


def _placements(place: _Place) -> tuple[Any, ...] | None:
    """How the plan splits a parameter; None where it leaves it alone."""
    found: Any = getattr(place.part, place.key)
    return tuple(found.placements) if is_sharded(found) else None


def _refuse_tied(names: list[str], placements: list[Any]) -> None:
    shown = [f"{n}: {'not split' if p is None else p[0]}" for n, p in zip(names, placements, strict=True)]
    raise PacelineError(
        "parallelize(mesh) splits parameters that are tied, and not all alike",
        code="tensor-parallel-plan",
        got=", ".join(shown),
        fix="split all of them along one dimension (an embedding with RowwiseParallel and a head with "
        "ColwiseParallel are), or none",
    )


class SplitLoss:
    """Inside it, a cross-entropy may be of split logits, forward or backward; it may be entered again.

    torch's ``loss_parallel`` ends at the first exit, and a step may go backward itself.
    """

    def __init__(self) -> None:
        self._depth, self._context = 0, ExitStack()

    def __enter__(self) -> None:
        from torch.distributed.tensor.parallel import loss_parallel

        if not self._depth:
            self._context.enter_context(loss_parallel())
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._context.close()

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step that runs inside, and returns whole tensors in place of split ones."""

        def wrapped(*args: Any) -> Any:
            with self:
                return _whole_results(step(*args))

        return wrapped


def _whole_results(found: Any) -> Any:
    """The same with whole tensors, in the containers that steps return."""
    if isinstance(found, Tensor):
        return whole(found)
    if isinstance(found, MutableMapping):
        changed = copy.copy(found)
        for key, value in found.items():
            changed[key] = _whole_results(value)
        return changed
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*map(_whole_results, found))
    if type(found) in (list, tuple):
        return type(found)(map(_whole_results, found))
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        copied: Any = copy.copy(found)
        for field in dataclasses.fields(found):
            object.__setattr__(copied, field.name, _whole_results(getattr(found, field.name)))
        return copied
    return found


def counted_norm(gradients: list[Tensor], tensor_rank: int) -> Tensor:
    """The 2-norm of all ranks' gradients together, a scalar, the same on each. To be called on all ranks.

    A gradient that several ranks hold is counted on one of them. (``torch.nn.utils.get_total_norm`` takes
    gradients on one mesh only, and those of layers that are not split are on a smaller one.)
    """
    mine = [local_part(g) for g in gradients if _counts_here(g, tensor_rank)]
    like = local_part(gradients[0])
    norm = nn.utils.get_total_norm(mine) if mine else like.new_zeros(())
    square = norm.to(torch.float64).square()
    dist.all_reduce(square)
    return square.sqrt().to(like.dtype)


def _counts_here(gradient: Any, tensor_rank: int) -> bool:
    if not hasattr(gradient, "placements"):
        return dist.get_rank() == 0
    mesh = gradient.device_mesh
    if AXIS not in mesh.mesh_dim_names and tensor_rank:
        return False
    coordinates = zip(gradient.placements, mesh.get_coordinate(), strict=True)
    return all(place == 0 for placement, place in coordinates if placement.is_replicate())


class EqualGradients:
    """See that the ranks of each tensor group have one gradient of what they hold whole.

    A parameter has been seen once its gradient was finite, and not zero: a layer whose weights begin at
    zero gives those before it none. What has not been seen is looked at in the first 16 backward passes,
    then after ever more.

    Args:
        module: Its parameters that the plan leaves whole are meant.
        group: The process group of the tensor group.
    """

    def __init__(self, module: nn.Module, group: Any) -> None:
        self._group, self._passes = group, 0
        self._unseen = {name: p for name, p in module.named_parameters() if not _is_split(p)}

    def check(self) -> None:
        """After a backward. To be called on all ranks.

        Raises:
            PacelineError: on all ranks, naming parameters whose gradient each rank has a part of.
        """
        self._passes += 1
        if not is_compared(self._passes):
            return
        trained = {name: p for name, p in self._unseen.items() if p.requires_grad}
        if not trained:
            return
        found = torch.stack([self._look(parameter) for parameter in trained.values()])
        dist.all_reduce(found, dist.ReduceOp.MAX)
        rows = dict(zip(trained, found.tolist(), strict=True))
        self._unseen = {name: p for name, p in self._unseen.items() if not rows.get(name, (0, 0))[0]}
        _refuse_unequal([name for name, (_, apart) in rows.items() if apart])

    def _look(self, parameter: nn.Parameter) -> Tensor:
        """Whether there is a gradient to compare, and whether it is another one than the first rank's."""
        gradient = parameter.grad
        mine = local_part(torch.zeros_like(parameter) if gradient is None else gradient).detach()
        first = mine.clone()
        dist.broadcast(first, group=self._group, group_src=0)
        size, away = (part.float().norm() for part in (first, mine - first))
        there = (size + away).isfinite() & (size + away > 0)
        return torch.stack([there, there & (away > _FAR * size)]).float()


def _refuse_unequal(wrong: list[str]) -> None:
    if wrong:
        raise PacelineError(
            "ranks that split the layers have different gradients of parameters that parallelize(mesh) "
            "leaves whole: each has computed with a part of the sequence, or of the heads",
            code="tensor-parallel-plan",
            got=listed(wrong),
            fix="name them in the plan too: SequenceParallel() for a norm between layers that are split "
            "along the sequence, SequenceParallel(sequence_dim=2) for one over split heads",
        )


def _is_split(parameter: Any) -> bool:
    """Whether the plan says how it lies on the ranks of a tensor group."""
    return AXIS in getattr(getattr(parameter, "device_mesh", None), "mesh_dim_names", ())
