"""Code that takes a part of a parameter for the whole one: an error, not a wrong number."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...errors import PacelineError

_PACKAGE = __name__.partition(".")[0]
_READS_NO_VALUE = {
    *("__hash__", "__repr__", "dtype", "device", "layout", "names", "type", "data_ptr", "untyped_storage"),
    *("grad", "grad_fn", "is_leaf", "requires_grad", "requires_grad_", "retains_grad"),
    *("register_hook", "register_post_accumulate_grad_hook"),
    *("is_floating_point", "is_complex", "is_cuda", "is_cpu", "is_meta", "is_sparse"),
}
"""Of a tensor, what has the same answer for a part and for the whole."""
_TO_PYTHON = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__complex__"}


class ParameterAccess(TorchFunctionMode):
    """In hooks of users: what reads or writes a parameter as if this rank had the whole of it is refused.

    Args:
        strategy: Its name, for the error.
        problem: Of a tensor and what is done with it, why it is refused and the way that works; else None.
        module: Gives the module of the run, which names its parameters, or None outside of a run.

    Example:
        >>> with ParameterAccess("fsdp", assigned_shard, lambda: module):
        ...     weight.data = 0.5 * weight  # doctest: +SKIP
        paceline.errors.PacelineError: strategy 'fsdp' holds line.weight in parts
    """

    def __init__(
        self,
        strategy: str,
        problem: Callable[[Tensor, str], tuple[str, str] | None],
        module: Callable[[], nn.Module | None],
    ) -> None:
        super().__init__()
        self._strategy, self._problem, self._module = strategy, problem, module

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in args:
            if isinstance(tensor, Tensor):
                found = self._problem(tensor, _name(func))
                if found is not None and not _is_library(inspect.currentframe()):
                    got, fix = found
                    name = self._name_of(tensor)
                    raise PacelineError(
                        f"strategy {self._strategy!r} holds {name} in parts",
                        code="sharded-access",
                        got=got,
                        fix=fix,
                    )
        return func(*args, **(kwargs or {}))

    def _name_of(self, tensor: Tensor) -> str:
        module = self._module()
        named = [] if module is None else module.named_parameters()
        found = (name.removeprefix("module.") for name, p in named if p is tensor)
        return next(found, "a value that was computed from parameters")


def assigned_shard(tensor: Tensor, what: str) -> tuple[str, str] | None:
    """For ``ParameterAccess``: what a DTensor takes without a word, and does otherwise than a tensor."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return None
    if what == "data =":
        return "an assignment to .data, which a DTensor ignores", "parameter.data.copy_(value)"
    sizes = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    if what in _TO_PYTHON and any(size > 1 and not one.is_replicate() for one, size in sizes):
        fix = "value.full_tensor() first, on all ranks; or trainer.strategy.weights.weight_norms(module)"
        return f"{what}() of a DTensor, which has this rank's part alone", fix
    return None


def partitioned(tensor: Tensor, what: str) -> tuple[str, str] | None:
    """For ``ParameterAccess``: a parameter of ZeRO 3, which is empty between two steps."""
    if what in _READS_NO_VALUE or not _is_empty(tensor):
        return None
    return (
        f"{what}, of a parameter that is empty between two steps",
        "trainer.strategy.weights.full_tensors(module) gives whole copies and weight_norms(module) norms, "
        "on all ranks; to write it, with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0): "
        "...",
    )


def _is_empty(tensor: Tensor) -> bool:
    status = getattr(tensor, "ds_status", None)
    return status is not None and status.name != "AVAILABLE"


def refuse_empty_state(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """A state dict hook of a module whose own parameters ZeRO 3 has divided.

    Raises:
        PacelineError: where the state dict would have empty tensors: of ``save_pretrained``, say.
    """
    for name, parameter in module.named_parameters(recurse=False):
        if _is_empty(parameter) and not _is_library(inspect.currentframe()):
            raise PacelineError(
                f"ZeRO stage 3 holds {prefix}{name} in parts, and a state dict would have an empty tensor",
                code="sharded-access",
                got=f"{type(module).__name__}.state_dict(), which torch.save and save_pretrained call too",
                fix='trainer.export(folder) or trainer.export(folder, "model") on all ranks, which writes '
                "a Hugging Face model in its own files; trainer.strategy.weights.full_tensors(module) in "
                "memory",
            )


def _name(func: Any) -> str:
    """What is done: a function's name, a property's, or an assignment to one."""
    name: str = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        name = func.__self__.__name__ + (" =" if name == "__set__" else "")
    return name


def _is_library(frame: Any) -> bool:
    """Whether the nearest caller outside of torch is DeepSpeed or ours, which gather what they read."""
    frame = frame.f_back
    while frame is not None and _package(frame) == "torch":
        frame = frame.f_back
    return frame is not None and _package(frame) in (_PACKAGE, "deepspeed")


def _package(frame: Any) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
