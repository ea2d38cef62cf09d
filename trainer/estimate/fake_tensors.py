"""Tensors without memory, and an account of the memory they would take.

torch's fake tensors, its memory tracker and some operations have no public name: they are used in this file
alone. No public tool gives the bytes of activations without allocating them. A test fails by name when they
change: ``tests/trainer/estimate/test_fake_tensors.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.distributed._tools.mem_tracker import MemTracker
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from . import attention_flops

VALUE_NEEDED = (DataDependentOutputException, DynamicOutputShapeException)
"""What is raised where a computation asks for a value that fake tensors do not have."""

ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops.forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_flops.backward,
}
"""What ``FlopCounterMode`` does not know: the CPU's attention, with formulas of its FLOPs."""
MOVE_NOTHING = {
    torch.ops.aten._unsafe_view,
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}
"""Operations besides views that read and write no values."""
_HOOKS = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)
PARAMETERS, BUFFERS, GRADIENTS, OPTIMIZER, TOTAL = "Parameter", "Buffer", "Gradient", "Optstate", "Total"
"""The tracker's kinds of tensors; its others are activations and temporary ones."""


@contextmanager
def fake_mode() -> Iterator[None]:
    """Within it new tensors have shapes and dtypes, and no memory; real ones are taken as constants."""
    with FakeTensorMode(allow_non_fake_inputs=True), _DoneOtherwise():
        yield


class _DoneOtherwise(TorchFunctionMode):
    """``copy.deepcopy`` of a tensor clones it, and one that needs no gradient takes hooks for it.

    torch would copy its storage, which fails under fake tensors, and ends the process when what is left of
    it is collected. ``MemTracker`` asks for gradients of frozen parameters too, which is an error.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            return memo[id(tensor)]
        if func in _HOOKS and not args[0].requires_grad:
            return RemovableHandle(OrderedDict())
        return func(*args, **(kwargs or {}))


def fake_like(tensor: Tensor, device: torch.device) -> Tensor:
    """A fake tensor of the same shape, to be made within ``fake_mode``."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


class _Tracker(MemTracker):
    """Without each module's own peak, which nobody reads: it costs all modules at every operation."""

    def _update_peak_stats(self, peak_state: Any) -> None:
        pass


class Account:
    """What live tensors take, by kind; ``seen`` is called after every operation.

    Args:
        seen: Takes the operation, its arguments and its result.
    """

    def __init__(self, seen: Callable[[Any, Any, Any], None]) -> None:
        self._tracker = _Tracker()
        self._seen = seen

    @contextmanager
    def open(self, *present: Any) -> Iterator[None]:
        """Count what is made within, and the tensors, modules and optimizers that are there already."""
        self._tracker.track_external(*present)
        with self._tracker, AfterEach(self._seen):
            yield

    def new_pass(self) -> None:
        """Another forward through the same modules comes next."""
        self._tracker.reset_mod_stats()

    def bytes(self) -> dict[str, int]:
        """Live bytes by kind, of all devices together."""
        found: dict[str, int] = {}
        for kinds in self._tracker.get_tracker_snapshot().values():
            for kind, size in kinds.items():
                name = getattr(kind, "value", kind)
                found[name] = found.get(name, 0) + size
        return found


class AfterEach(TorchDispatchMode):
    """Calls a function after every operation, with the operation, its arguments and its result."""

    def __init__(self, seen: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._seen(func, (args, kwargs), result)
        return result
