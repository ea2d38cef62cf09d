"""Functions about memory that Lightning code imports."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

from .....trainer.utils.nested import map_tensors


def recursive_detach(in_dict: Any, to_cpu: bool = False) -> Any:
    """Nested tensors without their graphs.

    Args:
        in_dict: Tensors in mappings and lists.
        to_cpu: Whether they are moved to the CPU.

    Example:
        >>> recursive_detach({"loss": torch.ones(1, requires_grad=True)})["loss"].requires_grad
        False
    """

    def detach(one: Tensor) -> Tensor:
        return one.detach().cpu() if to_cpu else one.detach()

    return map_tensors(in_dict, detach)


def is_oom_error(exception: BaseException) -> bool:
    """Whether an error says that memory has run out.

    Example:
        >>> is_oom_error(RuntimeError("CUDA out of memory. Tried to allocate ..."))
        True
    """
    text = str(exception)
    return isinstance(exception, torch.OutOfMemoryError) or (
        isinstance(exception, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    )


def garbage_collection_cuda() -> None:
    """Collect what is no longer used, and give cached memory of GPUs back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
