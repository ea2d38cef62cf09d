"""Calls of an optimizer without the profiler's record around them: half of what a small update takes."""

from __future__ import annotations

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer


def take_step(optimizer: Optimizer) -> None:
    """``optimizer.step()``, 6 us sooner where nobody profiles, hooks into it or has replaced it."""
    kind = type(optimizer)
    recorded, own = kind.step, vars(optimizer).get("step")
    inner = getattr(recorded, "__wrapped__", None)
    if own is not None:  # a schedule's, to see that one was taken
        if not hasattr(own, "_wrapped_by_lr_sched") or own.__wrapped__ is not recorded:
            inner = None
        else:
            optimizer._opt_called = True  # type: ignore[attr-defined]
    if (
        inner is None
        or not getattr(recorded, "hooked", False)
        or torch.autograd._profiler_enabled()
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    ):
        optimizer.step()
    else:
        inner(optimizer)


def clear_gradients(optimizer: Optimizer) -> None:
    """``zero_grad(set_to_none=True)``, 6 us sooner."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
