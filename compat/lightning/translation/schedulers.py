"""What ``configure_optimizers`` returns in Lightning's shapes, and when Lightning steps each scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .... import PacelineError

_KEYS = ("scheduler", "name", "interval", "frequency", "reduce_on_plateau", "monitor", "strict", "opt_idx")


@dataclass
class LRSchedulerConfig:
    """A scheduler and when it steps, with Lightning's names.

    Source: https://lightning.ai/docs/pytorch/stable/common/lightning_module.html#configure-optimizers
    """

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True

    def due(self, interval: str, count: int) -> bool:
        """Whether it steps now.

        Args:
            interval: ``"step"`` after a batch, ``"epoch"`` after an epoch.
            count: Batches of the epoch, or epochs, so far.
        """
        return self.interval == interval and count % self.frequency == 0


def read(configured: Any) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """Sort what ``configure_optimizers`` returned.

    Raises:
        PacelineError: for None, and for keys that Lightning does not know either.
    """
    if configured is None:
        raise PacelineError(
            "configure_optimizers returned None, and a fit needs an optimizer",
            code="optimizers-wrong",
            fix="return one; to run the steps without training, trainer.validate(model, loader)",
        )
    if isinstance(configured, Optimizer):
        return [configured], []
    if isinstance(configured, Mapping):
        return _of_mapping(configured)
    if isinstance(configured, Sequence) and configured and all(isinstance(c, Mapping) for c in configured):
        parts = [_of_mapping(one) for one in configured]
        return [o for part in parts for o in part[0]], [s for part in parts for s in part[1]]
    if (
        isinstance(configured, Sequence)
        and len(configured) == 2
        and isinstance(configured[0], (list, tuple))
    ):
        schedulers = configured[1] if isinstance(configured[1], (list, tuple)) else [configured[1]]
        return list(configured[0]), [_config(one, None) for one in schedulers]
    return list(configured), []


def _of_mapping(configured: Mapping[str, Any]) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    if configured.get("frequency") is not None:
        raise PacelineError(
            "configure_optimizers: 'frequency' beside 'optimizer' alternates optimizers, which Lightning "
            "itself no longer does",
            code="optimizers-wrong",
            fix="set self.automatic_optimization = False and step the optimizers in training_step",
        )
    schedule = configured.get("lr_scheduler")
    if schedule is None:
        return [configured["optimizer"]], []
    return [configured["optimizer"]], [_config(schedule, configured.get("monitor"))]


def _config(given: Any, monitor: str | None) -> LRSchedulerConfig:
    keys = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    unknown = sorted(set(keys) - set(_KEYS))
    if unknown:
        raise PacelineError(
            f"configure_optimizers: lr_scheduler has no key {unknown[0]!r}",
            code="schedule-wrong",
            allowed=", ".join(_KEYS),
        )
    keys.pop("opt_idx", None)
    keys.setdefault("monitor", monitor)
    keys.setdefault("reduce_on_plateau", isinstance(keys["scheduler"], ReduceLROnPlateau))
    config = LRSchedulerConfig(**keys)
    if config.interval not in ("step", "epoch"):
        raise PacelineError(
            "configure_optimizers: interval is not known",
            code="schedule-wrong",
            got=config.interval,
            allowed="'step', 'epoch'",
        )
    if config.reduce_on_plateau and config.monitor is None:
        raise PacelineError(
            "configure_optimizers: ReduceLROnPlateau watches a value, but none is named",
            code="schedule-wrong",
            fix='{"optimizer": ..., "lr_scheduler": scheduler, "monitor": "val_loss"}',
        )
    return config


def as_ours(
    optimizers: list[Optimizer], configs: list[LRSchedulerConfig], full_name: Any
) -> tuple[list[Optimizer], list[dict[str, Any]]]:
    """The same for our loop, which asks after each step; ``lr_scheduler_step`` knows whose turn it is.

    Args:
        optimizers: As they were configured.
        configs: As ``read`` gave them.
        full_name: Given a name of Lightning's, ours.
    """
    schedules: list[dict[str, Any]] = []
    for config in configs:
        ours: dict[str, Any] = {"scheduler": config.scheduler, "name": config.name, "strict": False}
        if config.reduce_on_plateau:  # asked once an epoch, and stepped elsewhere
            ours |= {"interval": "epoch", "monitor": full_name(config.monitor) or config.monitor}
        else:
            ours |= {"interval": "step"}
        schedules.append(ours)
    return optimizers, schedules
