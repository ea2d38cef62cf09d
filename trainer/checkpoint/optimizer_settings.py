"""Optimizer settings that ``configure_optimizers`` gives now and gave when a run began, where they differ.

What a schedule has made of a setting since is no difference: compared is what was configured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...errors import shown
from ..optimization import Optimization

OPTIMIZER = "optimizer"
_SHOWN = 4


@dataclass(frozen=True)
class Change:
    """A setting of a parameter group that is configured otherwise than when the run began."""

    optimizer: int
    group: int
    key: str
    then: Any
    now: Any


def resume_settings(
    optimization: Optimization,
    saved: dict[str, Any],
    schedulers: list[dict[str, Any]],
    allow: Collection[str],
) -> str | None:
    """Keep the checkpoint's settings, which were loaded, or take those of ``configure_optimizers``.

    Args:
        optimization: The run's optimizers, with the checkpoint's state, and its schedules.
        saved: The state of each optimizer in the checkpoint.
        schedulers: The state of each schedule in it, changed in place where a schedule gets another base.
        allow: ``"optimizer"`` takes those of ``configure_optimizers``.

    Returns:
        A line about what differs; None where nothing does.
    """
    takes = OPTIMIZER in allow
    changes = list(_changes(optimization, saved, takes))
    if takes:
        for change in changes:
            _take(optimization, change, schedulers)
    else:
        _keep(optimization, changes)
    if not changes:
        return None
    listed = _listed(optimization, changes)
    if takes:
        return f"optimizer settings of configure_optimizers are taken: {listed}"
    return (
        f"optimizer settings of the checkpoint are kept: {listed}; fit(..., resume=..., "
        'allow="optimizer") takes those of now'
    )


def _changes(optimization: Optimization, saved: dict[str, Any], takes: bool) -> Iterator[Change]:
    for index, groups in enumerate(optimization.configured):
        then = saved[str(index)].get("configured") or _of_groups(saved[str(index)]["groups"], takes)
        for number, (now, before) in enumerate(zip(groups, then, strict=False)):
            for key in now:
                if key in before and before[key] != now[key]:
                    yield Change(index, number, key, before[key], now[key])


def _of_groups(groups: list[dict[str, Any]], takes: bool) -> list[dict[str, Any]]:
    """What can be known of a checkpoint that lacks them: the rates that schedules began with.

    Where the new settings are taken anyway, all that the checkpoint has differs from them or not.
    """
    known = [{"lr": group["initial_lr"]} if "initial_lr" in group else {} for group in groups]
    return [group | one for group, one in zip(groups, known, strict=True)] if takes else known


def _keep(optimization: Optimization, changes: list[Change]) -> None:
    """What the checkpoints of this run will name is what the run began with."""
    for change in changes:
        optimization.configured[change.optimizer][change.group][change.key] = change.then


def _take(optimization: Optimization, change: Change, schedulers: list[dict[str, Any]]) -> None:
    group = optimization.optimizers[change.optimizer].param_groups[change.group]
    if change.key != "lr":
        _set(group, change.key, change.now)
        return
    floor, scheduled = 0.0, False
    for schedule, state in zip(optimization.schedules, schedulers, strict=True):
        if optimization.optimizer_of(schedule) in (None, change.optimizer):
            floor, scheduled = getattr(schedule.scheduler, "eta_min", 0.0), True
            _rebase(state["state"], change)
    if "initial_lr" in group:
        _set(group, "initial_lr", change.now)
    rate = _rescaled(float(group["lr"]), change, floor) if scheduled else change.now
    _set(group, "lr", rate)


def _rescaled(rate: float, change: Change, floor: float) -> float:
    """Where a schedule would be now that had begun with the new rate: schedules multiply it."""
    then, now = change.then, change.now
    if not isinstance(then, (int, float)) or then in (rate, floor):
        return float(now)
    return float(floor + (rate - floor) * (now - floor) / (then - floor))


def _rebase(state: Any, change: Change) -> None:
    """Give a saved schedule, and those inside of it, the new base of a group."""
    for value in state.values() if isinstance(state, dict) else state:
        if isinstance(value, (dict, list)):
            _rebase(value, change)
    bases = state.get("base_lrs") if isinstance(state, dict) else None
    if isinstance(bases, list) and change.group < len(bases) and bases[change.group] == change.then:
        bases[change.group] = change.now


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group.get(key), Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def _listed(optimization: Optimization, changes: list[Change]) -> str:
    """Each setting with both values; what all groups have in common once."""
    groups: dict[tuple[int, str, str, str], list[int]] = {}
    for one in changes:
        what = one.optimizer, one.key, shown(one.then, 40), shown(one.now, 40)
        groups.setdefault(what, []).append(one.group)
    parts = []
    for (index, key, then, now), numbers in groups.items():
        name = type(optimization.optimizers[index]).__name__
        if len(optimization.optimizers) > 1:
            name += f"-{index}"
        if len(numbers) < len(optimization.configured[index]):
            name += f" group {', '.join(map(str, numbers))}"
        parts.append(f"{name} {key} {then} in the checkpoint, {now} now")
    more = f"; and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return "; ".join(parts[:_SHOWN]) + more
