"""Fully sharded data parallel: parameters, gradients and optimizer state are spread over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..common.argument_checks import (
    COUNT,
    COUNT_OR_NONE,
    SWITCH,
    SWITCH_COUNT_OR_NONE,
    check_arguments,
    check_names,
)
from ..errors import PacelineError
from .base import parameters_of
from .blocks.materialise import materialise
from .blocks.repeated_blocks import find_units, outer_parts, untied
from .distributed import Distributed
from .dtypes.dtype_groups import refuse_several_dtypes, shard_by_dtype
from .dtypes.precision import Precision
from .estimate.description import Layout
from .estimate.sharded import ShardedDescription
from .gradients.backward_errors import gradient_in_parts, second_backward
from .gradients.first_step import arrivals, in_parts, is_recomputed
from .launch.environment import Environment
from .layers.tensor_parallel import AXIS, EqualGradients, LayerSplit, SplitLoss, counted_norm
from .module_checks import refuse_scalars, refuse_sharded
from .step_wrapper import Dispatch
from .sync_batchnorm import SyncedBatchNorms
from .tensors.parameter_access import ParameterAccess, assigned_shard
from .tensors.sharding import is_sharded, local_part, whole
from .torch_internals import (
    end_iteration,
    forget_gradients,
    ignore_redistribution_order,
    settle_shards,
)
from .trained import TrainedChange
from .weights import ShardedWeights

T = TypeVar("T")
_ROOT = "_sharded_root"
"""Where a module keeps the root it was sharded under: a later run uses it again."""
_SPLIT = "_layer_split"
"""Where a root keeps over how many ranks its layers are split, and the mesh."""


class FSDP(Distributed):
    """torch's ``fully_shard`` (FSDP2).

    What is gathered together are the module's ``shard_units()``, else its repeated blocks, and the rest.
    After a run the module stays sharded; ``Trainer.export`` and checkpoints have the whole of it. Under
    manual optimization each child of the module, or of a ``ModuleList`` or ``ModuleDict`` in it, is sharded
    by itself, so that the module may call ``manual_backward`` as often as it likes; each call reduces.

    Args:
        mixed_precision: A ``torch.distributed.fsdp.MixedPrecisionPolicy``: to gather parameters in
            bfloat16, say. None gathers and reduces them as they are; the run's precision holds either way.
        reshard_after_forward: Free what was gathered between forward and backward; None frees all but the
            outermost part, which backward needs first.
        cpu_offload: Keep the shards in the host's memory; pinned where there is an accelerator.
        activation_checkpointing: Compute the activations of the repeated blocks again in backward:
            all (True), or all but the results of matrix products and attention (``"selective"``).
        activation_offload: Keep the activations of the repeated blocks (True), or of submodules by name
            (``["blocks.*"]``), in the host's memory until backward.
        tensor: Split each layer over so many neighbouring ranks, as the module's ``parallelize(mesh)``
            says; they compute with the same samples, and parameters are sharded over the rest. 1: none is.

    Example:
        >>> from torch.distributed.fsdp import MixedPrecisionPolicy
        >>> policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        >>> strategy = FSDP(mixed_precision=policy)  # Trainer(strategy=strategy, devices=8)
    """

    name = "fsdp"

    def __init__(
        self,
        *,
        mixed_precision: Any = None,
        reshard_after_forward: bool | int | None = None,
        cpu_offload: bool = False,
        activation_checkpointing: bool | str = False,
        activation_offload: bool | str | Sequence[str] = False,
        tensor: int = 1,
    ) -> None:
        check_arguments(
            type(self).__name__,
            tensor=(tensor, COUNT),
            reshard_after_forward=(reshard_after_forward, SWITCH_COUNT_OR_NONE),
            cpu_offload=(cpu_offload, SWITCH),
        )
        super().__init__(
            activation_checkpointing=activation_checkpointing, activation_offload=activation_offload
        )
        self.mixed_precision, self.cpu_offload = mixed_precision, cpu_offload
        self.reshard_after_forward = reshard_after_forward
        self.tensor = tensor
        self._mesh: Any = None
        self._split_loss = SplitLoss()
        self._root: Dispatch | None = None
        self._manual = self._unfreezes = self._first = False
        self._reduces = True
        self._equal_gradients: EqualGradients | None = None
        self._norm: Tensor | None = None

    def attach(self, environment: Environment, precision: Precision) -> None:
        if environment.world_size % self.tensor:
            raise PacelineError(
                f"{type(self).__name__} cannot split layers over {self.tensor} of "
                f"{environment.world_size} rank{'s' if environment.world_size > 1 else ''}",
                code="number-of-ranks",
                got=f"tensor={self.tensor}, {environment.world_size} ranks",
                fix="a number of ranks that tensor divides",
            )
        super().attach(environment, precision)
        self.collectives.tensor_parallel_size = self.tensor
        self.weights = ShardedWeights(self.collectives)
        self.around_hooks = ParameterAccess(self.name, assigned_shard, lambda: self._root)

    @property
    def description(self) -> ShardedDescription:
        return ShardedDescription(
            self.mixed_precision, self.reshard_after_forward, self.cpu_offload, self.groups_of_ranks
        )

    def groups_of_ranks(self, layout: Layout) -> int:
        """How many groups of ranks hold the same shards."""
        return 1

    def mesh_shape(self) -> dict[str, int]:
        """The data ranks as ``fully_shard`` is to see them: the sizes of the mesh's dimensions, by name."""
        return {"shard": self.collectives.data_world_size}

    def make_mesh(self) -> Any:
        """All ranks as a ``DeviceMesh``: ``mesh_shape``, and last the tensor dimension, if there is one."""
        from torch.distributed.device_mesh import init_device_mesh

        shape = self.mesh_shape()
        if self.tensor > 1:
            shape = shape | {AXIS: self.tensor}
        return init_device_mesh(self.device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))

    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        self._manual = not getattr(module, "automatic_optimization", True)
        root = vars(module).get(_ROOT)
        if root is None:
            root = vars(module)[_ROOT] = Dispatch(module, None)
            self._shard(root)
            vars(root)[_SPLIT] = (self.tensor, self._mesh)
        earlier, self._mesh = vars(root)[_SPLIT]
        if earlier != self.tensor:
            raise PacelineError(
                f"an earlier run has split the layers of {type(module).__name__} otherwise",
                code="module-still-sharded",
                got=f"tensor={self.tensor}, and {earlier} then",
                fix=f"{type(module).__name__}.load_from_checkpoint(run.latest) is a whole one; or the same "
                "tensor=",
            )
        if self.tensor > 1:
            self._equal_gradients = EqualGradients(module, self._mesh.get_group(AXIS))
        if self.settings.sync_batchnorm:
            self._batchnorms = SyncedBatchNorms(module, self.collectives.data_group)
        root.context = self.precision.context(self.device)
        self._root, self._first = root, True
        self._forget_last_run()
        root.lasting = set(module.parameters())
        self.change_activations(module)
        return build_optimizers()

    def _forget_last_run(self) -> None:
        """One that failed within a step has left gradients, and reductions switched off."""
        for part in self._parts():
            part.set_requires_gradient_sync(True, recurse=False)
            forget_gradients(part)

    def _shard(self, root: Dispatch) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        module = root.module
        refuse_sharded(module)
        refuse_scalars(module, self.name)
        mesh, split = self.make_mesh(), None
        if self.tensor > 1:
            ignore_redistribution_order()
            self._mesh, mesh = mesh, mesh[tuple(self.mesh_shape())]
            split = LayerSplit(module, self._mesh[AXIS])
        options: dict[str, Any] = {"mesh": mesh}
        options["reshard_after_forward"] = True if self._manual else self.reshard_after_forward
        if self.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type != "cpu")

        def shard(part: nn.Module, dtype: torch.dtype | None) -> None:
            wide = None if dtype is None else torch.promote_types(dtype, self.precision.reduce_dtype)
            policy = MixedPrecisionPolicy(reduce_dtype=None if wide == dtype else wide)
            fully_shard(part, mp_policy=self.mixed_precision or policy, **options)
            settle_shards(part)

        units = untied(module, find_units(module))
        parts = [*units, *(outer_parts(self.name, module, units) if self._manual else [])]
        if not self._manual:
            parts.append(root)
        for part in parts:
            # One part after the other: a model built on meta never stands on one device as a whole.
            materialise(module, part if part is not root else None)
            self.precision.convert_module(part if part is not root else module)
            self._broadcast_tensors([t for t in (*part.parameters(), *part.buffers()) if not is_sharded(t)])
            if split is not None:
                split.apply(part)
            shard_by_dtype(module, part, shard, self._is_reduced)
        placed: dict[Tensor, Tensor] = {}  # one that several parts have stays one
        for part in module.modules():
            for name, buffer in [*part.named_buffers(recurse=False)]:
                setattr(part, name, placed.setdefault(buffer, buffer.to(self.device)))

    def _is_reduced(self, parameter: nn.Parameter) -> bool:
        """Whether a parameter is not sharded yet, and has a gradient at any time of the run."""
        names = getattr(getattr(parameter, "device_mesh", None), "mesh_dim_names", (AXIS,))
        return names == (AXIS,) and (parameter.requires_grad or self._unfreezes)

    def check_unfreezing(self) -> None:
        self._unfreezes = True

    def trainable_changed(self, module: nn.Module, change: TrainedChange) -> None:
        if change.placed or change.removed:
            super().trainable_changed(module, change)
        refuse_several_dtypes(self._parts(), change)

    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        assert self._root is not None
        step = super().step_function(module, name) if self._manual else partial(self._root, name)
        return step if self.tensor == 1 else self._split_loss.around(step)

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        assert self._root is not None
        if self._root.went_backward and not self._manual:
            raise second_backward(self.name)
        self._root.went_backward = True
        with self._arrivals(loss) as came, nullcontext() if self.tensor == 1 else self._split_loss:
            super().backward(loss, retain_graph)
        if in_parts(came):  # the first part alone is reduced
            raise gradient_in_parts(self.name, sorted(in_parts(came)))
        if self._reduces and self._equal_gradients is not None:
            self._equal_gradients.check()

    def _arrivals(self, loss: Tensor) -> AbstractContextManager[list[str]]:
        """In step 1, names of inner units' parameters as gradients come, where blocks are recomputed."""
        assert self._root is not None
        if not self._first or not is_recomputed(loss):
            return nullcontext([])
        paths = {part: path for path, part in self._root.module.named_modules()}
        found: dict[str, Tensor] = {}
        for unit in (part for part in self._parts() if part in paths):
            unit.unshard()  # these are other tensors than the shards, and the same ones each time
            found |= {name: p for name, p in unit.named_parameters(paths[unit]) if p.requires_grad}
            unit.reshard()
        return arrivals(found)

    def synchronise_gradients(self, enabled: bool) -> None:
        assert self._root is not None
        if self._manual:  # gradients are averaged in each backward: parts of them would be in no ``.grad``
            return
        self._reduces = enabled
        self._root.set_requires_gradient_sync(enabled)  # type: ignore[operator]

    def unscale(self, optimizer: Optimizer) -> None:
        super().unscale(optimizer)
        self._first = False
        for found in self.precision.overflows(optimizer):  # each rank has looked at its shards only
            everyones = found.to(self.device)
            dist.all_reduce(everyones, dist.ReduceOp.MAX)
            found.copy_(everyones)

    def find_nonfinite(self, optimizer: Optimizer, found: Tensor) -> bool:
        if self.settings.clip_norm is None or self.settings.hooks_see_gradients:
            super().find_nonfinite(optimizer, found)
            dist.all_reduce(found, dist.ReduceOp.MAX)  # each rank has looked at its shards only
            return True
        # The norm that clipping needs is of all ranks' shards, and not finite where one gradient is not.
        self._norm = self._total_norm(optimizer)
        found.masked_fill_(~self._norm.isfinite().to(found.device), 1)
        return True

    def own_gradients(self, optimizer: Optimizer) -> list[Tensor]:
        with torch.no_grad():  # else each is recorded for backward, at 4 us
            return [local_part(grad) for grad in super().own_gradients(optimizer)]

    def clip(self, optimizer: Optimizer, norm: float | None, value: float | None) -> Tensor | None:
        total, self._norm = self._norm, None
        if norm is not None:
            # As torch's clip_grad_norm_, which until torch 2.9 adds its epsilon on each rank.
            total = self._total_norm(optimizer) if total is None else total
            self.multiply_gradients(optimizer, (norm / (total + 1e-6)).clamp(max=1.0))
        if value is not None:
            for parameter in parameters_of(optimizer):
                if parameter.grad is not None:
                    local_part(parameter.grad).clamp_(-value, value)
        return total

    @contextmanager
    def evaluation(self, module: nn.Module) -> Iterator[None]:
        with super().evaluation(module):
            yield
        # What a forward without gradients gathered would be used again after the shards have changed.
        for part in self._parts():
            part.reshard()

    def _parts(self) -> list[Any]:
        """The modules that were sharded."""
        from torch.distributed.fsdp import FSDPModule

        assert self._root is not None
        return [part for part in self._root.modules() if isinstance(part, FSDPModule)]

    def close(self) -> None:
        super().close()
        if self._root is not None:
            for part in self._parts():
                end_iteration(part)
        self._root = self._norm = self._equal_gradients = None

    def _total_norm(self, optimizer: Optimizer) -> Tensor:
        """The norm of all ranks' gradients, the same tensor on each rank."""
        gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        if self.tensor > 1 and gradients:
            return counted_norm(gradients, self.collectives.tensor_rank)
        return whole(nn.utils.get_total_norm(gradients))


class HSDP(FSDP):
    """FSDP within groups of ranks, data parallel between them (a 2-D mesh).

    Args:
        replicate: How many groups; None: one for each machine, on one machine two.
        **options: Those of ``FSDP``.

    Example:
        >>> strategy = HSDP(replicate=2)  # Trainer(strategy=strategy, devices=8): 2 groups of 4 ranks
    """

    name = "hsdp"

    def __init__(self, *, replicate: int | None = None, **options: Any) -> None:
        check_names(FSDP, options, who="HSDP")
        check_arguments("HSDP", replicate=(replicate, COUNT_OR_NONE))
        super().__init__(**options)
        self.replicate = replicate

    def groups_of_ranks(self, layout: Layout) -> int:
        return self.replicate or (layout.nodes if layout.nodes > 1 else 2)

    def mesh_shape(self) -> dict[str, int]:
        environment, ranks = self.environment, self.collectives.data_world_size
        groups = self.groups_of_ranks(Layout(environment.world_size, environment.local_world_size))
        if ranks % groups:
            split = f", each of {self.tensor} that split the layers," if self.tensor > 1 else ""
            raise PacelineError(
                f"HSDP cannot split {ranks} ranks{split} into {groups} groups of one size",
                code="number-of-ranks",
                got=f"replicate={groups}, {environment.world_size} ranks"
                + (f", tensor={self.tensor}" if self.tensor > 1 else ""),
                fix="HSDP(replicate=...) of paceline.strategies with a divisor, or strategy='fsdp'",
            )
        return {"replicate": groups, "shard": ranks // groups}
