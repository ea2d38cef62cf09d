"""A copy of a module and of a batch without memory, on any device, as a run would have them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...strategies import Precision
from ..metrics.metric_objects import metric_parts
from ..module import TrainModule, configure
from ..utils.nested import map_tensors
from .fake_tensors import fake_like


def meta_module(module: TrainModule, precision: Precision, dtype: torch.dtype) -> tuple[TrainModule, int]:
    """A copy on the meta device in the dtypes of a run, and the bytes of its parameters as they are kept.

    Args:
        module: Stays as it is; where ``configure_model`` is to build parts, it does so in the copy.
        precision: The run's.
        dtype: What a strategy computes in, where that is not the dtype parameters are kept in.
    """
    made = _with_tensors(module, lambda tensor: _like(tensor, torch.empty_like(tensor, device="meta")))
    configure(made)
    precision.convert_module(made)
    kept = sum(p.numel() * p.element_size() for p in made.parameters())
    if dtype != precision.param_dtype:
        made.to(dtype)
    made.train()
    return made, kept


def fake_module(module: TrainModule, device: torch.device) -> TrainModule:
    """A copy with fake parameters and buffers, to be made within ``fake_mode``.

    Args:
        module: Stays as it is. Objects of torchmetrics in the copy count nothing.
        device: What the copy is on; it need not exist.
    """
    made = _with_tensors(module, lambda tensor: _like(tensor, fake_like(tensor, device)))
    for metric in metric_parts(made).values():  # many read values, and what they keep is small
        vars(metric).update(update=_zero, forward=_zero, compute=_zero)
    for part in made.modules():
        if hasattr(part, "update") and hasattr(part, "compute"):  # a collection too
            vars(part).update(update=_zero)
    return made


def _zero(*arguments: Any, **options: Any) -> Tensor:
    return torch.zeros(())


def _with_tensors(module: TrainModule, make: Any) -> TrainModule:
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(tensor): make(tensor) for tensor in tensors})


def _like(tensor: Tensor, made: Tensor) -> Tensor:
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def fake_batch(batch: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """The batch as fake tensors; floats in ``dtype``, unless that is None."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        made = fake_like(value.detach(), device)
        return made.to(dtype) if dtype is not None and made.is_floating_point() else made

    return map_tensors(batch, one)
