"""What becomes of activations between forward and backward: computed again, or kept on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ...errors import PacelineError, nearest
from .repeated_blocks import find_units

SELECTIVE = "selective"
_SMALLEST = 1024  # bytes: less is not worth a copy
# torchtitan's rule (torchtitan/distributed/activation_checkpoint.py, 2026): keep what is slow to compute
# for its size. ``max`` and ``topk`` are the scales of float8 and the routes of experts.
_KEPT = {
    "aten": (
        *("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_scaled_mm", "max", "topk"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
        *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"),
        *("_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math"),
    ),
    "torch_attn": ("_varlen_attn",),
    "_c10d_functional": ("reduce_scatter_tensor", "all_to_all_single"),
}


class Activations:
    """Activation checkpointing and offload of parts of a module, in place: no name in it changes.

    Args:
        module: Its repeated blocks, or ``shard_units()``, are the parts.
        checkpointing: Compute activations again in backward: all (True) or, with ``"selective"``, all but
            the results of matrix products, attention and reductions over ranks.
        offload: Keep what backward needs in the host's memory: of the parts (True), or of the submodules
            with these dotted names or patterns.

    Raises:
        PacelineError: for a module without repeated blocks, and names that are no submodules.
    """

    def __init__(
        self, module: nn.Module, checkpointing: bool | str, offload: bool | str | Sequence[str] = False
    ) -> None:
        self._changed: dict[nn.Module, None] = {}
        if checkpointing:
            rule: dict[str, Any] = {"context_fn": _selective} if checkpointing == SELECTIVE else {}
            for unit in _units(module, "activation_checkpointing"):
                self._replace(unit, partial(checkpoint, unit.forward, use_reentrant=False, **rule))
        if offload:
            parts = _units(module, "activation_offload") if offload is True else _named(module, offload)
            for part in parts:
                self._replace(part, partial(_offloaded, part.forward, part))

    def _replace(self, part: nn.Module, forward: Callable[..., Any]) -> None:
        self._changed[part] = None
        vars(part)["forward"] = forward

    def undo(self) -> None:
        """Give the parts their own forward back."""
        for part in self._changed:
            vars(part).pop("forward", None)


def _units(module: nn.Module, argument: str) -> list[nn.Module]:
    units = find_units(module)
    if not units:
        raise PacelineError(
            f"{argument} found no repeated blocks in the module",
            code="repeated-blocks",
            fix="def shard_units(self): return self.blocks",
        )
    return units


def _named(module: nn.Module, names: bool | str | Sequence[str]) -> list[nn.Module]:
    parts = dict(module.named_modules())
    found: dict[nn.Module, None] = {}
    for name in [names] if isinstance(names, str) else list(names):  # type: ignore[arg-type]
        matching = [part for path, part in parts.items() if path and fnmatchcase(path, name)]
        if not matching:
            raise PacelineError(
                f"activation_offload: {type(module).__name__} has no submodule {name!r}",
                code="part-not-found",
                got=name,
                allowed="dotted names or patterns: blocks.0, blocks.*, encoder",
                meant=nearest(name, parts),
            )
        found |= dict.fromkeys(matching)
    return list(found)


@cache
def _kept_operations() -> frozenset[Any]:
    found = set()
    for library, names in _KEPT.items():
        for name in names:
            packet = getattr(getattr(torch.ops, library), name, None)
            if packet is not None:
                found |= {getattr(packet, overload) for overload in packet.overloads()}
    return frozenset(found)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operation in _kept_operations()
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _offloaded(forward: Callable[..., Any], part: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run ``forward``; what autograd saves in it, but parameters, lies on the host until backward."""
    tensors = [t for t in (*part.parameters(), *part.buffers()) if t.device.type not in ("cpu", "meta")]
    own = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    with saved_tensors_hooks(partial(_to_host, own), _from_host):
        return forward(*args, **kwargs)


def _to_host(own: set[int], tensor: Tensor) -> Any:
    is_small = tensor.nbytes < _SMALLEST or tensor.layout is not torch.strided
    if tensor.is_cpu or is_small or tensor.untyped_storage().data_ptr() in own:
        return tensor
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return tensor.device, copy.copy_(tensor, non_blocking=True)


def _from_host(saved: Any) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    device, copy = saved
    found: Tensor = copy.to(device, non_blocking=True)
    return found
