"""Tensor parallelism: the parameters of a layer are split over ranks, as ``TrainModule.parallelize`` says.

The splitting itself, its collectives and the loss over split logits are torch's
(https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import PacelineError
from .sharding import is_sharded, local_part, whole

AXIS = "tensor"
"""The name of the mesh dimension over which layers are split."""
_FAR = 0.05  # of a gradient's norm: rounding is far below, a part of the sum far above


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
            module.parallelize(mesh)  # type: ignore[operator]
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


def _placements(place: _Place) -> tuple[Any, ...] | None:
    """How the plan splits a parameter; None where it leaves it alone."""
    found: Any = getattr(place.part, place.key)
    return tuple(found.placements) if is_sharded(found) else None


def _refuse_tied(names: list[str], placements: list[Any]) -> None:
    shown = [f"{n}: {'not split' if p is None else p[0]}" for n, p in zip(names, placements, strict=True)]
    raise PacelineError(
        "parallelize(mesh) splits parameters that are tied, and not all alike",
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
    """The same with whole tensors; only the containers that steps return are looked into."""
    if isinstance(found, Tensor):
        return whole(found)
    if type(found) is dict:
        return {key: _whole_results(value) for key, value in found.items()}
    if type(found) in (list, tuple):
        return type(found)(map(_whole_results, found))
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


def check_equal_gradients(module: nn.Module, group: Any) -> None:
    """See that the ranks of each tensor group have one gradient of what they hold whole. On all ranks.

    Args:
        module: After a backward.
        group: The process group of the tensor group.

    Raises:
        PacelineError: on all ranks, naming parameters whose gradient each rank has a part of.
    """
    names, apart = [], []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or AXIS in getattr(_mesh_of(parameter), "mesh_dim_names", ()):
            continue
        gradient = parameter.grad
        mine = local_part(torch.zeros_like(parameter) if gradient is None else gradient).detach()
        first = mine.clone()
        dist.broadcast(first, group=group, group_src=0)
        away = (mine.float() - first.float()).norm()
        names.append(name)
        apart.append((away > _FAR * first.float().norm()).float())  # False for NaN
    if not names:
        return
    flags = torch.stack(apart).to(torch.float32)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    wrong = [name for name, flag in zip(names, flags.tolist(), strict=True) if flag]
    if wrong:
        raise PacelineError(
            "ranks that split the layers have different gradients of parameters that parallelize(mesh) "
            "leaves whole: each has computed with a part of the sequence, or of the heads",
            got=", ".join(wrong[:6]) + (f" and {len(wrong) - 6} more" if len(wrong) > 6 else ""),
            fix="name them in the plan too: SequenceParallel() for a norm between layers that are split "
            "along the sequence, SequenceParallel(sequence_dim=2) for one over split heads",
        )


def _mesh_of(parameter: Any) -> Any:
    return getattr(parameter, "device_mesh", None)
