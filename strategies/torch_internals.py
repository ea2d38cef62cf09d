"""All that is used of torch without a public name, each with its reason.

The launcher's part is in ``launch/elastic_agent.py``.
``tests/strategies/test_torch_internals.py`` fails by name where a torch lacks one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

# The collate table and the worker info, which have no public path: see "DataLoader" below.
from torch.utils.data._utils import collate
from torch.utils.data._utils import worker as data_worker

# GradScaler's own kernel: one pass over all gradients. isfinite() on each takes ten times as long on a CPU.
check_and_multiply = torch._amp_foreach_non_finite_check_and_unscale_

# What torch's own optimizers and clipping use to multiply a list of tensors: there is no public name.
multiply_each = torch._foreach_mul_


# -- Modules -------------------------------------------------------------------------------------
# A step that failed is undone. named_buffers skips a buffer that is None, which a step may fill; and
# whether a parameter was written to, its values do not show without a copy of them. A module that changes
# what is loaded into it is asked before a checkpoint is refused, and only such a one.

_OURS = __name__.partition(".")[0]


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The buffers of a module itself by name, those that are None too."""
    return module._buffers


def loads_by_itself(module: nn.Module) -> bool:
    """Whether a module has a say in how a state dict is loaded into it: an override, or a load pre-hook.

    Those of torch's own modules, for the versions of their states, do not count, nor do ours.
    """
    hooks = [type(module)._load_from_state_dict, *module._load_state_dict_pre_hooks.values()]
    return any(getattr(h, "__module__", "").partition(".")[0] not in ("torch", _OURS) for h in hooks)


def writes_to(tensors: Iterable[torch.Tensor]) -> list[int]:
    """For each tensor a number that grows with every write in place."""
    return [tensor._version for tensor in tensors]


# -- DistributedDataParallel ---------------------------------------------------------------------
# In which order gradients lie in the reducer's buckets decides how sums are rounded, and so whether a
# resumed run is bit-identical. torch gives no way to choose it.


def expect_every_gradient(wrapped: DistributedDataParallel) -> None:
    """Let the reducer wait for a gradient of every parameter, as after a forward through the wrapper."""
    wrapped.reducer.prepare_for_backward([])


def rebuild_buckets(wrapped: DistributedDataParallel) -> None:
    """Lay out the buckets in the order in which the last backward's gradients came, if that was the first.

    Raises:
        RuntimeError: naming the parameters that got no gradient, where a bucket was not reduced.
    """
    wrapped.reducer._rebuild_buckets()


# -- FSDP2 ---------------------------------------------------------------------------------------
# A step that failed leaves gradients, which FSDPModule.reset_iter_state does not drop.


def forget_gradients(part: nn.Module) -> None:
    """Drop what an ``FSDPModule`` has not reduced yet, which is in no parameter's ``grad``."""
    state: Any = part._get_fsdp_state()  # type: ignore[operator]
    for group in _parameter_groups(state):
        for parameter in group.fsdp_params:
            if "unsharded_accumulated_grad" in vars(parameter):  # until torch 2.14
                parameter.unsharded_accumulated_grad = None
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None


def _parameter_groups(state: Any) -> list[Any]:
    """Before torch 2.12 a module has one group, or none."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def end_iteration(part: nn.Module) -> None:
    """Reshard what a failed step left gathered. Only for the outermost ``FSDPModule`` that has run.

    Others refuse ``reset_iter_state``, and which one is the outermost has no public name.
    """
    state: Any = part._get_fsdp_state()  # type: ignore[operator]
    if not state._is_root:
        return
    if hasattr(part, "reset_iter_state"):  # since torch 2.13
        part.reset_iter_state()  # type: ignore[operator]
    else:
        _reset_iteration(state)


def _reset_iteration(root: Any) -> None:
    """What ``reset_iter_state`` does; the whole device is waited for in place of its events."""
    if root._device.type != "cpu":
        torch.accelerator.synchronize(root._device)
    shared = root._comm_ctx
    shared.all_gather_state = None
    shared.post_forward_order.clear()
    if hasattr(shared, "reduce_scatter_states"):  # since torch 2.12
        shared.reduce_scatter_states.clear()
    else:
        shared.reduce_scatter_state = None
    for state in root._state_ctx.all_states:
        state._modules_to_run_forward.clear()
        state._training_state = type(state._training_state).IDLE
        for group in _parameter_groups(state):
            gathered = group._all_gather_result
            if gathered is not None and hasattr(gathered.all_gather_work, "wait"):
                gathered.all_gather_work.wait()
            group._all_gather_result = group._post_reduce_event = group._all_reduce_state = None
            group._reshard_after_forward_event = group._partial_reduce_output = None
            group._post_forward_indices.clear()
            group._training_state = type(group._training_state).IDLE
            group._to_sharded()
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False


def settle_shards(part: nn.Module) -> None:
    """Before torch 2.10 the first forward moves shards of uneven length, away from those who hold them."""
    if has_grad_dtype():
        return
    for group in _parameter_groups(part._get_fsdp_state()):  # type: ignore[operator]
        for parameter in group.fsdp_params:
            parameter.reset_sharded_param()
        group._reset_sharded_params = True


# -- DTensor -------------------------------------------------------------------------------------
# A parameter that is split over two mesh dimensions is gathered in two steps, for an export say. Each time
# torch warns of it, on every rank; fully_shard has chosen the order, and no option silences it.


def ignore_redistribution_order() -> None:
    """Keep torch from warning that DTensors are redistributed in several steps."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


# -- What is public in a newer torch -------------------------------------------------------------


def has_grad_dtype() -> bool:
    """Whether a gradient may have another dtype than its parameter: since torch 2.10."""
    return hasattr(torch.Tensor, "grad_dtype")


def memory_of(device: torch.device | int) -> tuple[int, int]:
    """Bytes of an accelerator's memory that are free, and in all."""
    if hasattr(torch.accelerator, "get_memory_info"):  # since torch 2.10
        free, total = torch.accelerator.get_memory_info(device)
    else:
        free, total = torch.get_device_module(torch.accelerator.current_accelerator()).mem_get_info(device)
    return int(free), int(total)


# -- DataLoader ----------------------------------------------------------------------------------

# torch's documented way to extend default_collate, which has no public path:
# https://docs.pytorch.org/docs/stable/data.html#torch.utils.data._utils.collate.collate
collate_table = collate.default_collate_fn_map
collate_tensors = collate.collate_tensor_fn


def drop_iterator(loader: DataLoader[Any]) -> None:
    """Let go of the iterator, and so of the workers, that a loader keeps from one epoch to the next.

    ``persistent_workers`` end with it alone, and a copy of a loader must not share it.
    """
    vars(loader)["_iterator"] = None


def set_worker_info(info: Any) -> None:
    """In a loader worker: what ``get_worker_info`` returns from now on. Nothing public changes it."""
    data_worker._worker_info = info


# -- torch.compile -------------------------------------------------------------------------------


def is_compiled(module: nn.Module) -> bool:
    """Whether ``module.compile`` was called, which would compile it a second time."""
    return module._compiled_call_impl is not None


def compile_callbacks() -> Any:
    """Where functions are registered that torch.compile calls before and after each compilation.

    ``torch.compiler`` has no public hook that reports how long a compilation took.
    """
    from torch._dynamo import callback

    return callback.callback_handler


def compilation_records() -> list[Any]:
    """The latest compilations of this process, the last 64: their ids, and why torch compiled again.

    The reason is written to torch's own log only, for those who set ``TORCH_LOGS``.
    """
    from torch._dynamo.utils import get_compilation_metrics

    return get_compilation_metrics()


def graph_breaks() -> int:
    """How many graph breaks torch.compile has met in this process.

    ``torch._dynamo.explain`` counts them too, and runs the model for it.
    """
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


# -- memory --------------------------------------------------------------------------------------

# Documented, with the underscore: https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
dump_memory_snapshot: Callable[[str], None] = torch.cuda.memory._dump_snapshot
