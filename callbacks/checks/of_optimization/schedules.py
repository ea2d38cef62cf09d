"""Checks of learning rate schedules: what they will do in the run, and what they have done at its end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.optim import lr_scheduler

from ....schedules import RateLR
from ..finding import Evidence, check
from ..seen import Seen
from .schedule_future import Future, futures

_LENGTHS = {
    "StepLR": "step_size",
    "CosineAnnealingLR": "T_max",
    "CosineAnnealingWarmRestarts": "T_0",
    "OneCycleLR": "total_steps",
    "PolynomialLR": "total_iters",
    "LinearLR": "total_iters",
}


def _length(scheduler: Any) -> tuple[str, int] | None:
    """What a schedule of torch says of its length: the argument and its value."""
    name = type(scheduler).__name__
    if isinstance(scheduler, lr_scheduler.MultiStepLR):
        return ("milestones", min(scheduler.milestones)) if scheduler.milestones else None
    value = getattr(scheduler, _LENGTHS.get(name, "-"), None)
    return (_LENGTHS[name], int(value)) if isinstance(value, (int, float)) else None


def _too_slow(scheduler: Any, future: Future) -> bool:
    """Whether it goes by epochs, and does next to nothing in so few of them."""
    if not future.by_epochs or future.other_steps < 3 * future.steps:
        return False
    length = _length(scheduler)
    if length is not None and future.steps > 1:
        per_epoch = future.other_steps // future.steps
        counted = abs(length[1] - future.other_steps) <= 1 or length[1] % max(2, per_epoch) == 0
        return length[1] >= 20 * future.steps or (length[1] > 3 * future.steps and counted)
    if not isinstance(scheduler, lr_scheduler.LambdaLR) or future.steps < 3:
        return False
    inside, later = future.rates[: future.within], future.rates[future.within :]
    still = max(inside) - min(inside) <= 0.01 * max(inside)
    return bool(still and later and min(later) <= 0.05 * max(inside))


def is_too_fast(scheduler: Any, future: Future) -> bool:
    """Whether it goes by steps and is at its end after so many as there are epochs."""
    if future.by_epochs or future.steps < 4 * future.other_steps:
        return False
    length, rates = _length(scheduler), future.rates[: future.within]
    if length is None:
        return False
    name, count = length
    if name == "total_iters" and isinstance(scheduler, lr_scheduler.LinearLR):
        return False  # a short warm-up
    if name in ("T_max", "total_iters") and count == future.other_steps:
        return True
    falls = name in ("step_size", "milestones", "total_iters")
    return falls and max(rates[len(rates) // 2 :]) < 1e-3 * max(rates)


@check("schedule-interval", at="start")
def schedule_in_the_other_unit(seen: Seen) -> Iterator[Evidence]:
    """A schedule counts steps and goes by epochs, or the reverse."""
    for scheduler, future in futures(seen):
        length = _length(scheduler)
        counts = f"{future.name}({length[0]}={length[1]})" if length else future.name
        if _too_slow(scheduler, future):
            yield Evidence(
                f"{counts} steps once an epoch, {future.steps} times in all: it hardly changes the rate",
                '"interval": "step" beside the scheduler, or count in epochs',
            )
        elif is_too_fast(scheduler, future):
            low = min(future.rates[: future.within])
            yield Evidence(
                f"{counts} steps at each of {future.steps} steps, and takes the rate to {low:.1e} early",
                '"interval": "epoch" beside the scheduler, or count in steps',
            )


@check("schedule-interval", at="end")
def schedule_stepped_too_seldom(seen: Seen) -> Iterator[Evidence]:
    """Under manual optimization: a schedule of many steps was stepped once an epoch."""
    if getattr(seen.module, "automatic_optimization", True) or seen.step < 8:
        return
    for schedule in seen.trainer.loop.schedules:
        length, count = _length(schedule.scheduler), getattr(schedule.scheduler, "last_epoch", None)
        if length is None or not isinstance(count, int):
            continue
        if 1 < count <= seen.step / 4 and length[1] > 3 * count and length[1] <= 2 * seen.step:
            yield Evidence(
                f"{type(schedule.scheduler).__name__}({length[0]}={length[1]}) was stepped {count} times "
                f"in {seen.step} steps",
                "call its step() after each step of the optimizer, or count in epochs",
            )


@check("long-warmup", at="start")
def warmup_beyond_the_end(seen: Seen) -> Iterator[Evidence]:
    """The rate rises through the whole run, and would reach its highest value after the end."""
    total, epoch = seen.trainer.total_steps, seen.trainer.steps_per_epoch
    if total is not None and epoch is not None and total < epoch:
        return  # a trial of a longer run
    for scheduler, future in futures(seen):
        if _too_slow(scheduler, future):
            continue
        inside, later = future.rates[: future.within], future.rates[future.within :]
        if len(inside) < 2 or len(later) < 2 or future.steps < 3:
            continue
        rises = all(b >= a for a, b in itertools.pairwise(inside)) and inside[-1] > 1.2 * inside[0]
        peak = max(later)
        levels_off = later.index(peak) < len(later) - 1 or isinstance(scheduler, RateLR)
        if rises and levels_off and inside[-1] < 0.9 * peak:
            yield Evidence(
                f"the rate still rises when the run ends after {seen.trainer.total_steps} steps: it gets "
                f"to {inside[-1]:.2g} of {peak:.2g}",
                "make the warm-up a small part of the run",
            )


@check("long-warmup", at="end")
def warmup_by_hand_beyond_the_end(seen: Seen) -> Iterator[Evidence]:
    """The run itself raises the rate, and never gets near the one that the optimizer was given."""
    if seen.trainer.loop.schedules or seen.step < 10:
        return
    for optimizer in seen.trainer.optimizers:
        seen_rates = [max(one.rates, default=0.0) for one in seen.updates if one.optimizer is optimizer]
        given = float(getattr(optimizer, "defaults", {}).get("lr", 0.0))
        last = max((float(group["lr"]) for group in optimizer.param_groups), default=0.0)
        rates = [*seen_rates[:10], last]
        rises = len(rates) > 5 and all(b > a for a, b in itertools.pairwise(rates))
        if rises and last < 0.5 * given:
            yield Evidence(
                f"the rate rose from {rates[0]:.1e} to {last:.1e} at the end, and {given:.1e} was given",
                "make the warm-up a small part of the run",
            )
