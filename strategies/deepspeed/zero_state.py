"""Reading and writing a ZeRO engine's state parameter by parameter, and taking the engine off a module.

DeepSpeed keeps fp32 masters and moments in flat tensors, one for each parameter group (stages 1, 2) or
sub-group (stage 3), of which each rank holds a part. Here they are whole tensors by parameter name, so
that checkpoints look the same whoever wrote them. All functions are called on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...errors import PacelineError
from ..blocks.materialise import materialise
from ..blocks.repeated_blocks import find_units, untied
from ..tensors.parameter_access import refuse_empty_state
from . import internals


def materialise_in_shards(
    module: nn.Module, convert: Callable[[nn.Module], None], config: dict[str, Any]
) -> None:
    """Fill a module on "meta" unit by unit, each partitioned at once: it is nowhere as a whole.

    Args:
        module: Its parameters have no values yet.
        convert: Gives a unit the dtypes of the run.
        config: The engine's.
    """
    import deepspeed

    for unit in untied(module, find_units(module)):
        materialise(module, unit)
        convert(unit)
        deepspeed.zero.Init(module=unit, config_dict_or_path=config)


def whole(parameter: Tensor) -> Tensor:
    """A copy of a parameter that may be partitioned, gathered."""
    if not hasattr(parameter, "ds_id"):
        return parameter.detach().clone()
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def partition(parameter: Any) -> Tensor:
    """This rank's part of a parameter under stage 3: flat, and padded to the same size on all ranks."""
    part: Tensor = parameter.ds_tensor.data
    return part


def assembled(parameter: Any, part: Tensor) -> Tensor:
    """The whole of a tensor of which each rank has a part like ``partition``. On all ranks."""
    import torch.distributed as dist

    flat = part.new_empty(part.numel() * parameter.ds_zero_partition_world_size)
    dist.all_gather_into_tensor(flat, part.contiguous(), group=parameter.ds_process_group)
    return flat[: parameter.ds_numel].view(parameter.ds_shape)


@torch.no_grad()
def refresh_whole_ones(parameters: list[Any]) -> None:
    """Copy the ranks' parts into parameters that DeepSpeed keeps whole. On all ranks."""
    for parameter in parameters:
        if parameter.ds_status.name == "AVAILABLE":
            parameter.data.copy_(assembled(parameter, partition(parameter)))


@torch.no_grad()
def divide_whole_ones(parameters: Iterable[Any]) -> None:
    """The other way round: this rank's part of what DeepSpeed keeps whole, into its partition."""
    for parameter in parameters:
        if parameter.ds_status.name == "AVAILABLE":
            part = part_of(parameter, parameter.data)
            parameter.ds_tensor.data.copy_(part.view_as(parameter.ds_tensor))


def flat_groups(engine: Any) -> list[tuple[Tensor, list[Tensor]]]:
    """This rank's part of each flat master, with the parameters that lie in it."""
    zero = engine.optimizer
    if engine.zero_optimization_stage() == 3:
        return list(zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True))
    return list(zip(zero.single_partition_of_fp32_groups, zero.bit16_groups, strict=True))


def read_optimizer(engine: Any, names: dict[Tensor, str], mine: Any) -> dict[str, dict[str, Tensor]]:
    """Moments and counters by parameter name.

    Args:
        engine: The DeepSpeedEngine, on all ranks alike: partitioned states are gathered.
        names: The name of each parameter.
        mine: ``mine(name)``: whether this rank is to keep a parameter's; others are gathered only.
    """
    from deepspeed.utils import safe_get_full_optimizer_state

    found: dict[str, dict[str, Tensor]] = {}
    stage = engine.zero_optimization_stage()
    if stage == 0:
        for parameter, name in names.items():
            for key, value in engine.optimizer.state.get(parameter, {}).items():
                if value is not None and mine(name):
                    found.setdefault(name, {})[key] = torch.as_tensor(value).detach().cpu()
        return found
    for flat, parameters in flat_groups(engine):
        state = engine.optimizer.optimizer.state.get(flat, {})
        _link(engine, flat, parameters, state)
        for parameter in parameters:
            for key, value in state.items():
                if value is None:
                    continue
                if _is_moment(value, flat):
                    # It is gathered in fp32, whatever it is kept in.
                    value = safe_get_full_optimizer_state(parameter, key).to(value.dtype)
                if mine(names[parameter]):
                    kept = torch.as_tensor(value).detach().to("cpu", copy=True)
                    found.setdefault(names[parameter], {})[key] = kept
    return found


@torch.no_grad()
def write_parameters(engine: Any, names: dict[Any, str], values: dict[str, Tensor]) -> None:
    """Whole parameters into the engine's masters and into what forward reads."""
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

    stage = engine.zero_optimization_stage()
    grouped = {p for _, parameters in flat_groups(engine) for p in parameters} if stage else set()
    for parameter, name in names.items():
        value = values[name].to(parameter.device)
        if stage < 3:
            parameter.data.copy_(value)
            if parameter in grouped:
                safe_set_full_fp32_param(parameter, value)
            continue
        part = part_of(parameter, value)
        parameter.ds_tensor.data.copy_(part.view_as(parameter.ds_tensor))
        if parameter.ds_status.name == "AVAILABLE":  # small ones are kept whole
            parameter.data.copy_(value)
        if parameter in grouped:
            safe_set_local_fp32_param(parameter, part)


@torch.no_grad()
def write_masters(engine: Any) -> None:
    """The parameters as they are into the engine's masters. On all ranks."""
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

    partitioned = engine.zero_optimization_stage() == 3
    for parameter in (p for _, parameters in flat_groups(engine) for p in parameters):
        if partitioned:
            safe_set_local_fp32_param(parameter, partition(parameter))
        else:
            safe_set_full_fp32_param(parameter, parameter.data)


@torch.no_grad()
def write_optimizer(engine: Any, names: dict[Tensor, str], values: dict[str, dict[str, Any]]) -> None:
    """What ``read_optimizer`` gave, of all parameters, at any time.

    Raises:
        PacelineError: for counters that differ within a flat group, which has one for all.
    """
    if engine.zero_optimization_stage() == 0:
        for parameter, name in names.items():
            engine.optimizer.state.pop(parameter, None)
            if values.get(name):
                engine.optimizer.state[parameter] = {
                    k: v.to(parameter.device) if isinstance(v, Tensor) and v.ndim else v
                    for k, v in values[name].items()
                }
        return
    from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

    zero, stage = engine.optimizer, engine.zero_optimization_stage()
    for index, (flat, parameters) in enumerate(flat_groups(engine)):
        with internals.swapped_in(engine, index):
            state = _flat_state(flat, parameters, names, values)
            moments = {key for key, value in state.items() if _is_moment(value, flat)}
            zero.optimizer.state.pop(flat, None)
            if state:
                zero.optimizer.state[flat] = state
        _link(engine, flat, parameters, state)
        for parameter in parameters:
            for key in moments:
                value = values[names[parameter]][key].to(flat.device)
                if stage == 3:
                    safe_set_local_optimizer_state(parameter, part_of(parameter, value), key)
                else:
                    safe_set_full_optimizer_state(parameter, value, key)
    if stage < 3:
        zero._hp_optimizer_states_linked = any(zero.optimizer.state.get(f) for f, _ in flat_groups(engine))


def _flat_state(
    flat: Tensor, parameters: list[Tensor], names: dict[Tensor, str], values: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Empty moments for a flat group, and its counters."""
    without = [names[p] for p in parameters if not values.get(names[p])]
    if 0 < len(without) < len(parameters):
        raise PacelineError(
            "ZeRO keeps one state for a parameter group, and the checkpoint has it for a part of one",
            code="checkpoint-mismatch",
            got=f"no state of {', '.join(without[:4])}: never used before it was written",
            fix="resume it with strategy='fsdp' or 'ddp', or load the weights alone",
        )
    first = values.get(names[parameters[0]], {})
    state: dict[str, Any] = {}
    for key, value in first.items():
        if isinstance(value, Tensor) and value.ndim:
            state[key] = torch.zeros_like(flat)
            continue
        odd = [n for p in parameters if values.get(n := names[p], {}).get(key) != value]
        if odd:
            raise PacelineError(
                f"ZeRO keeps one {key!r} for a whole parameter group, and the checkpoint has several",
                code="checkpoint-mismatch",
                got=f"{key} of {names[parameters[0]]} is {float(value)}; another of {', '.join(odd[:4])}",
                fix="resume it with strategy='fsdp' or 'ddp', or load the weights alone",
            )
        state[key] = value.clone() if isinstance(value, Tensor) else value
    return state


def _is_moment(value: Any, flat: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == flat.shape


def _link(engine: Any, flat: Tensor, parameters: list[Tensor], state: dict[str, Any]) -> None:
    """Tell parameters where their moments lie: DeepSpeed does so once, before all groups have some."""
    if engine.zero_optimization_stage() == 3:
        return
    for parameter in parameters:
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is not None:
            mapping.set_optim_state_fragment(flat, state)


def part_of(parameter: Any, value: Tensor) -> Tensor:
    """This rank's part of a parameter-shaped tensor under stage 3, padded as DeepSpeed pads."""
    size = parameter.ds_tensor.numel()
    value = value.to(parameter.ds_tensor.device)
    flat = value.new_zeros(size * parameter.ds_zero_partition_world_size)
    flat[: value.numel()] = value.reshape(-1)
    return flat.narrow(0, size * parameter.ds_zero_partition_rank, size).clone()


HELD = "_zero_engine"
"""Where a module keeps the stage 3 engine that holds its parameters, after its run."""


class Held(NamedTuple):
    """An engine that a module keeps after its run, and what is needed to take it off the module again."""

    engine: Any
    carried: dict[Tensor, dict[str, Any]]
    hooks: list[RemovableHandle]


def refuse_state_dicts(module: nn.Module) -> list[RemovableHandle]:
    """Let ``state_dict`` be an error where it would have empty tensors; what is given removes that."""
    parts = [part for part in module.modules() if part._parameters]
    return [part.register_state_dict_pre_hook(refuse_empty_state) for part in parts]


_LEFT_ON_MODULES = {
    "pre_bwd_fn",
    "post_bwd_fn",
    "all_parameters",
    "applied_pre_backward_ref_cnt",
    "_original_parameters",
    "_external_params",
}


def remember(module: nn.Module) -> dict[Tensor, dict[str, Any]]:
    """What parameters carry before DeepSpeed writes into them; for ``release``."""
    return {p: dict(vars(p)) for p in module.parameters()}


@torch.no_grad()
def release(
    engine: Any,
    module: nn.Module,
    carried: dict[Tensor, dict[str, Any]],
    hooks: Sequence[RemovableHandle] = (),
) -> None:
    """Destroy the engine and leave the module as it was, with whole parameters, the same objects."""
    from deepspeed.runtime.zero import parameter_offload

    values = {p: whole(p) for p in module.parameters()}
    for hook in hooks:
        hook.remove()
    stage, zero = engine.zero_optimization_stage(), engine.optimizer
    engine.destroy()
    for part in module.modules():
        if isinstance(part._parameters, parameter_offload.ZeROOrderedDict):
            part._parameters = dict(dict.items(part._parameters))  # its own items() would gather
        for key in [k for k in vars(part) if k.startswith("ds_") or k in _LEFT_ON_MODULES]:
            del vars(part)[key]
    for parameter, value in values.items():
        parameter.grad = None
        parameter.data = value
        vars(parameter).clear()
        vars(parameter).update(carried.get(parameter, {}))
    if stage == 3:  # what DeepSpeed keeps in globals would hold all partitions alive
        del parameter_offload.FWD_MODULE_STACK[:]
        vars(zero.parameter_offload).clear()
    if stage:
        vars(zero).clear()
    engine.optimizer = None
