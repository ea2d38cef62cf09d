"""Small functions that Lightning code imports."""

from __future__ import annotations

from typing import Any

from .....trainer.module_parts.recorded import HParams as AttributeDict
from ...translation.refusals import refuse_import
from .combined_loader import CombinedLoader
from .rank_zero import (
    disable_possible_user_warnings,
    rank_zero_debug,
    rank_zero_deprecation,
    rank_zero_info,
    rank_zero_only,
    rank_zero_warn,
)

__all__ = [
    "AttributeDict",
    "CombinedLoader",
    "disable_possible_user_warnings",
    "grad_norm",
    "move_data_to_device",
    "rank_zero_debug",
    "rank_zero_deprecation",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
]


def grad_norm(module: Any, norm_type: float | str, group_separator: str = "/") -> dict[str, float]:
    """The norm of each gradient and of all, by name; on one device.

    Args:
        module: With gradients.
        norm_type: The order; ``"inf"`` is the largest absolute value.
        group_separator: Between ``grad_2.0_norm`` and the parameter's name.
    """
    import torch

    order = float(norm_type)
    norms = {n: p.grad.data.norm(order) for n, p in module.named_parameters() if p.grad is not None}
    found = {f"grad_{order}_norm{group_separator}{n}": norm for n, norm in norms.items()}
    if norms:
        found[f"grad_{order}_norm_total"] = torch.stack([*norms.values()]).norm(order)
    return found


def move_data_to_device(batch: Any, device: Any) -> Any:
    """A nested batch on a device."""
    from .....trainer.utils.nested import map_tensors, to_device

    return map_tensors(batch, lambda one: to_device(one, device))


_HERE = {
    "AMPType": "precision= of Trainer",
    "convert_zero_checkpoint_to_fp32_state_dict": "paceline export CHECKPOINT FOLDER",
}


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, _HERE)
