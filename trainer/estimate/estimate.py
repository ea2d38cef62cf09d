"""An estimate: one trace of the step on one device, then each strategy's own account of its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...common.argument_checks import COUNT_OR_NONE, check_arguments
from ...errors import PacelineError
from ...strategies import Description, Layout, ModelBytes, Strategy
from ...strategies.auto import DECISION, estimated_strategies
from ...strategies.machine.devices import accelerator_here, device_memory
from ..module import TrainModule
from .devices import Device, device_here, find_device, parse_bytes
from .findings import EstimateRow
from .first_batch import find_batch
from .result import Estimate
from .step_time import Assumptions, assumptions, step_time
from .trace import Setting, Work, trace_step

_LIMIT = 0.95  # the rest is the driver's, and the communication library's
_PER_NODE = 8


@dataclass(frozen=True)
class Wanted:
    """What an estimate is asked for; ``paceline.tools.estimate`` has the meanings.

    Args:
        devices: How many; None for those of the trainer.
        per_node: How many of them a machine has; None for the usual number.
        memory: Of each; None for what they have.
        gpu: The device by name; None for the one here.
        assume: For the model of the time.
        accumulate: Micro-batches in a step; None for those of the trainer.
    """

    devices: int | None = None
    per_node: int | None = None
    memory: int | float | str | None = None
    gpu: str | None = None
    assume: dict[str, float] = field(default_factory=dict)
    accumulate: int | None = None


def estimate_run(
    trainer: Any, module: TrainModule, batch: Any, datamodule: Any, wanted: Wanted
) -> Estimate:
    """What ``paceline.tools.estimate`` does.

    Args:
        trainer: Whose strategy, precision and accumulation are estimated.
        module: As ``paceline.tools.estimate`` takes it.
        batch: Likewise.
        datamodule: Likewise.
        wanted: What is asked for.

    Raises:
        PacelineError: for what cannot be estimated.
    """
    check_arguments(
        "estimate", devices=(wanted.devices, COUNT_OR_NONE), per_node=(wanted.per_node, COUNT_OR_NONE)
    )
    if not isinstance(module, TrainModule):
        raise PacelineError(
            "estimate takes a TrainModule",
            code="wrong-object",
            got=type(module).__name__,
            fix="TrainModule.of(model, loss, optimizer) makes one of a model",
        )
    if trainer.ranks.tensor_parallel_size > 1:
        raise PacelineError(
            "estimate does not know how parallelize(mesh) splits the layers",
            code="estimate-not-possible",
            got=f"tensor={trainer.ranks.tensor_parallel_size}",
            fix="estimate with the strategy without tensor=: parameters, gradients and optimizer state of "
            "layers that are split take as much on each rank",
        )
    environment, precision = trainer.strategy.environment, trainer.strategy.precision
    device = find_device(wanted.gpu) if wanted.gpu is not None else device_here()
    layout = _layout(environment, wanted)
    there, accelerated = _memory(environment, wanted, device)
    assumed = assumptions(device, precision.compute_dtype, wanted.assume)
    batch = find_batch(module, batch, datamodule)
    accumulate = wanted.accumulate or trainer.settings.accumulate
    setting = Setting(
        torch.device(_kind_to_trace(environment)),
        precision,
        precision.param_dtype,
        trainer.strategy.activations.checkpointing,
        accumulate,
        accelerated,
    )
    traced: dict[torch.dtype, tuple[ModelBytes, Work]] = {}
    rows = []
    for name, strategy in _strategies(trainer, layout).items():
        dtype = strategy.description.computes_in(precision)
        if dtype not in traced:
            traced[dtype] = trace_step(module, batch, replace(setting, dtype=dtype), trainer)
        ranks = layout if strategy.many_ranks else Layout(1, 1)
        row = _row(name, strategy.description, *traced[dtype], ranks, assumed, accelerated)
        rows.append(replace(row, fits=row.needed <= _LIMIT * there))
    model, work = next(iter(traced.values()))
    return Estimate(
        module=type(module).__name__,
        parameters=model.all_numbers,
        precision=precision.name,
        device=_name(device, environment, wanted),
        devices=layout.ranks,
        per_node=layout.per_node,
        memory=there,
        limit=_LIMIT,
        samples=work.samples,
        micro_batches=accumulate,
        recomputes=bool(setting.recompute),
        rows=tuple(rows),
        order=DECISION,
        assumed=assumed,
    )


def _strategies(trainer: Any, layout: Layout) -> dict[str, Strategy]:
    """Those that every estimate has, and the trainer's own where it has options or is none of them."""
    found, own = estimated_strategies(layout.ranks), trainer.strategy
    if isinstance(trainer.settings.strategy, Strategy) or own.name not in found:
        found = {own.name: own, **{name: one for name, one in found.items() if name != own.name}}
    return found


def _layout(environment: Any, wanted: Wanted) -> Layout:
    ranks = wanted.devices or environment.world_size
    usual = min(ranks, _PER_NODE) if wanted.devices is not None else environment.local_world_size
    return Layout(ranks, min(wanted.per_node or usual, ranks))


def _memory(environment: Any, wanted: Wanted, device: Device | None) -> tuple[int, bool]:
    """The bytes of a device, and whether it is an accelerator: sizes that are named are taken for one's."""
    if wanted.memory is not None:
        return parse_bytes(wanted.memory), True
    if wanted.gpu is not None and device is not None:
        return device.memory, True
    there = device_memory(environment.device)
    if environment.device.type == "cpu":
        return there // environment.local_world_size, False
    return there, True


def _name(device: Device | None, environment: Any, wanted: Wanted) -> str:
    if device is not None:
        return device.name
    kind: str = environment.device.type
    return kind if wanted.memory is None else "device"


def _kind_to_trace(environment: Any) -> str:
    """Fake tensors of an accelerator need a build of torch for it."""
    kind: str = environment.device.type
    return kind if accelerator_here() is not None else "cpu"


def _row(
    name: str,
    description: Description,
    model: ModelBytes,
    work: Work,
    layout: Layout,
    assumed: Assumptions | None,
    accelerated: bool,
) -> EstimateRow:
    held = description.rank_bytes(model, layout)
    needed = held.reserved if accelerated else held.total
    if assumed is None:
        return EstimateRow(name, layout.ranks, held, needed, fits=False)
    time = step_time(description, model, work, layout, assumed)
    rate = layout.ranks * model.micro_batches / time.seconds
    tokens = None if work.tokens is None else work.tokens * rate
    return EstimateRow(name, layout.ranks, held, needed, False, time, work.samples * rate, tokens)
