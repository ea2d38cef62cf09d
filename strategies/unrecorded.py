"""Calls of an optimizer without the records of torch's profiler around them, where nobody profiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

_RECORDED = Optimizer.profile_hook_step(lambda self: None).__code__


def take_step(optimizer: Optimizer) -> None:
    """``optimizer.step()``, 6 us sooner."""
    inner = _unrecorded_step(optimizer)
    if inner is None:
        optimizer.step()
    else:
        inner(optimizer)


def _unrecorded_step(optimizer: Optimizer) -> Callable[[Optimizer], Any] | None:
    """The step inside torch's record; None where more than the record is around it, or it is wanted."""
    recorded, own = type(optimizer).step, vars(optimizer).get("step")
    if getattr(recorded, "__code__", None) is not _RECORDED or torch.autograd._profiler_enabled():
        return None
    if (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    ):
        return None
    if own is not None:
        if not hasattr(own, "_wrapped_by_lr_sched") or own.__wrapped__ is not recorded:
            return None
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what a schedule puts there does no more
    inner: Callable[[Optimizer], Any] = recorded.__wrapped__  # type: ignore[attr-defined]
    return inner


def clear_gradients(optimizer: Optimizer) -> None:
    """``optimizer.zero_grad(set_to_none=True)``, 6 us sooner."""
    replaced = type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(optimizer)
    if replaced or torch.autograd._profiler_enabled():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
