"""What a learning rate schedule will do: a copy of it is stepped, and nothing of the run is touched."""

from __future__ import annotations

import copy
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import lr_scheduler

from ..seen import Seen

_MOST_STEPS = 3000
_FACTORS = 400
_FURTHER = 20
_FAR = 40


@dataclass
class Future:
    """The rates that a schedule sets.

    Attributes:
        name: Of its class.
        by_epochs: Whether it steps once an epoch.
        steps: How often it steps in the run.
        other_steps: How often it would, if it went by the other unit.
        rates: The highest rate of all groups, at points of the run from its start, then beyond its end.
        within: How many of ``rates`` are within the run.
        base: The rate that the optimizer was given.
    """

    name: str
    by_epochs: bool
    steps: int
    other_steps: int
    rates: list[float]
    within: int
    base: float

    @property
    def unit(self) -> str:
        """What it goes by."""
        return "epoch" if self.by_epochs else "step"


def futures(seen: Seen) -> list[tuple[Any, Future]]:
    """The schedules of the run with what they will do, where that can be said."""
    trainer, found = seen.trainer, []
    total, manual = trainer.total_steps, not getattr(seen.module, "automatic_optimization", True)
    if total is None or total < 2 or manual or seen.settings.get("fast_dev_run"):
        return []
    epochs = -(-total // trainer.steps_per_epoch) if trainer.steps_per_epoch else trainer.max_epochs
    for schedule in trainer.loop.schedules:
        if schedule.monitor is not None or not epochs:
            continue
        by_epochs, every = schedule.interval == "epoch", max(1, schedule.frequency)
        counts = [max(1, n // every) for n in (epochs, total)]
        steps, other = counts if by_epochs else counts[::-1]
        future = _future(schedule.scheduler, steps, other, by_epochs)
        if future is not None:
            found.append((schedule.scheduler, future))
    return found


def _future(scheduler: Any, steps: int, other: int, by_epochs: bool) -> Future | None:
    try:
        rates, within = _rates(scheduler, steps, max(other, _FURTHER * steps))
    except Exception:
        return None  # it has something that cannot be copied, or does not go on beyond the run
    groups = scheduler.optimizer.param_groups
    base = max(float(group.get("initial_lr", group["lr"])) for group in groups)
    return Future(type(scheduler).__name__, by_epochs, steps, other, rates, within, base)


def _rates(scheduler: Any, steps: int, horizon: int) -> tuple[list[float], int]:
    if isinstance(scheduler, lr_scheduler.LambdaLR):
        within = _spread(0, steps, _FACTORS)
        rates = [_rate_at(scheduler, point) for point in within]
        with suppress(Exception):  # one that is made for the length of the run
            for number in range(_FAR):
                rates.append(_rate_at(scheduler, int(steps * 1.25**number)))
        return rates, len(within)
    if type(scheduler).__module__ != lr_scheduler.__name__ or steps > _MOST_STEPS:
        raise TypeError(type(scheduler))
    return _stepped(scheduler, steps, min(horizon, _MOST_STEPS)), steps


def _rate_at(scheduler: Any, step: int) -> float:
    both = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    return max(float(base) * float(factor(step)) for base, factor in both)


def _spread(start: int, end: int, most: int) -> range:
    return range(start, end, max(1, (end - start) // most))


def _stepped(scheduler: Any, steps: int, horizon: int) -> list[float]:
    """The rates of a copy whose optimizer has no more than the settings of the groups."""
    optimizer = scheduler.optimizer
    stand_in = torch.optim.SGD([{"params": [torch.zeros(1)]} for _ in optimizer.param_groups], lr=0.1)
    for own, group in zip(optimizer.param_groups, stand_in.param_groups, strict=True):
        group.update({k: copy.deepcopy(v) for k, v in own.items() if k != "params"})
    copied = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(horizon):
            rates.append(max(float(group["lr"]) for group in stand_in.param_groups))
            try:
                copied.step()
            except ValueError:  # one that ends, as OneCycleLR does
                if number < steps:
                    raise
                break
    return rates
