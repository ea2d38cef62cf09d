"""What the attributes of modules and of callbacks hold: weights, counts, monitors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..monitors.monitor import Monitor
from ..trainer_view import TrainerView

UPDATES = " (batches)"
"""Ends the name of a metric object, with how many batches it has taken."""
TENSORS = " (tensors)"
"""Ends the name of a list of tensors of several values, with its length."""
_MOST = 200


def own_weight(part: nn.Module) -> nn.Parameter | None:
    """The parameter ``weight`` of a layer; None where it has none, or computes it.

    To ask for one that is computed may change buffers, as spectral norms do in training mode.
    """
    return dict(part.named_parameters(recurse=False)).get("weight")


def is_trained(part: nn.Module) -> bool:
    """Whether a layer has a parameter ``weight`` that requires a gradient."""
    weight = own_weight(part)
    return weight is not None and weight.requires_grad


def monitors_of(trainer: TrainerView) -> Iterator[tuple[str, str, str]]:
    """Who watches which value, and which way it takes for better: ``("Checkpoint", "val/loss", "min")``."""
    for callback in trainer.callbacks:
        for one in vars(callback).values():
            if isinstance(one, Monitor):
                yield type(callback).__name__, one.name, one.mode
    for schedule in trainer.loop.schedules:
        if schedule.monitor is not None and isinstance(schedule.scheduler, ReduceLROnPlateau):
            yield type(schedule.scheduler).__name__, schedule.monitor, schedule.scheduler.mode


def numbers_of(module: nn.Module) -> dict[str, float]:
    """Numbers and lengths of lists among its attributes, and how many batches metric objects have."""
    found: dict[str, float] = {}
    for name, value in list(vars(module).items())[:_MOST]:
        if name.startswith("_"):
            continue
        if type(value) in (int, float):
            found[name] = float(value)
        elif isinstance(value, list):
            tensors = bool(value) and isinstance(value[-1], Tensor) and value[-1].numel() > 1
            found[f"{name}{TENSORS}" if tensors else name] = float(len(value))
        elif isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
            found[name] = float(value)
    metrics = [one for one in module.named_modules() if type(one[1]).__module__.startswith("torchmetrics")]
    for name, part in metrics:
        count: Any = getattr(part, "update_count", None)
        if isinstance(count, int) and "." not in name:
            found[f"{name}{UPDATES}"] = float(count)
    return found
