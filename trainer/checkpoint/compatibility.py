"""How a run differs from the one a checkpoint is of: told in one report, by name, before loading."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...errors import PacelineError
from .weights import model_shapes, refuse, weight_differences

if TYPE_CHECKING:
    from ..session import Session

ALLOWED = ("data",)


def check_allowed(allow: str | Collection[str]) -> frozenset[str]:
    """What ``fit(allow=...)`` lets differ.

    Raises:
        PacelineError: for anything but ``"data"``.
    """
    given: Any = allow
    names = frozenset(given if isinstance(given, (list, tuple, set, frozenset)) else [given])
    if not names <= set(ALLOWED):
        raise PacelineError(
            "fit(allow=...) names what may differ from the checkpoint",
            got=", ".join(sorted(map(repr, names - set(ALLOWED)))),
            allowed=" or ".join(map(repr, ALLOWED)),
        )
    return names


def refuse_differences(
    trainer: Session,
    folder: Path,
    manifest: dict[str, Any],
    state: dict[str, Any],
    shapes: dict[str, list[int]],
    allow: Collection[str],
) -> dict[str, Tensor]:
    """See that the run can go on from the checkpoint. To be called on all ranks.

    Args:
        shapes: Of all tensors of the checkpoint.
        allow: What may differ: ``"data"``.

    Returns:
        The module's tensors.

    Raises:
        PacelineError: one report of every difference in model, optimizers, schedules and data.
    """
    mine = trainer.strategy.module_tensors(trainer.module)
    found = weight_differences(mine, model_shapes(shapes))
    found += _optimizers(trainer, state["optimizers"]) + _schedules(trainer, state["schedulers"])
    fix = None
    if "data" not in allow and (data := data_differences(trainer, manifest)):
        found += data
        fix = 'fit(..., allow="data") goes on with other data; the epoch under way begins anew'
    refuse("the run cannot go on from this checkpoint", folder, found, fix)
    return mine


def data_differences(trainer: Session, manifest: dict[str, Any]) -> list[str]:
    """How the training data differs from the checkpoint's."""
    then, now = manifest["data"], trainer.data_fingerprint()
    return [
        f"training data: {key} {then[key]} in the checkpoint, {now[key]} now"
        for key in then
        if key in now and then[key] != now[key]
    ]


def _optimizers(trainer: Session, saved: dict[str, Any]) -> list[str]:
    optimizers = trainer.optimization.optimizers
    if len(optimizers) != len(saved):
        return [f"{len(saved)} optimizers in the checkpoint, {len(optimizers)} now"]
    found: list[str] = []
    for index, optimizer in enumerate(optimizers):
        then, name = saved[str(index)], type(optimizer).__name__
        _, now = trainer.strategy.optimizer_state(trainer.module, optimizer)
        if then["class"] != name:
            found.append(f"optimizer: {then['class']} in the checkpoint, {name} now")
        groups, groups_then = now["groups"], then["groups"]
        if len(groups) != len(groups_then):
            found.append(
                f"{name}: {len(groups_then)} parameter groups in the checkpoint, {len(groups)} now"
            )
            continue
        for number, (group, group_then) in enumerate(zip(groups, groups_then, strict=True)):
            more = [
                f"{n}: not in this group of the checkpoint"
                for n in group["params"]
                if n not in group_then["params"]
            ]
            less = [
                f"{n}: in this group of the checkpoint only"
                for n in group_then["params"]
                if n not in group["params"]
            ]
            found += [f"{name}, group {number}, {what}" for what in more + less]
    return found


def _schedules(trainer: Session, saved: list[dict[str, Any]]) -> list[str]:
    now = [type(s.scheduler).__name__ for s in trainer.optimization.schedules]
    then = [s["class"] for s in saved]
    if now == then:
        owners = [trainer.optimization.optimizer_of(s) for s in trainer.optimization.schedules]
        return [
            f"schedule {index}: optimizer {one['optimizer']}'s in the checkpoint, {owner}'s now"
            for index, (one, owner) in enumerate(zip(saved, owners, strict=True))
            if one.get("optimizer", owner) != owner
        ]
    shown = [", ".join(names) or "none" for names in (then, now)]
    return [f"learning rate schedules: {shown[0]} in the checkpoint, {shown[1]} now"]


def callback_differences(trainer: Session, saved: dict[str, Any]) -> list[str]:
    """Callbacks whose state has nowhere to go, and those that find none: said, not refused."""
    mine = {c.state_key: c.state_dict() for c in trainer.callbacks}
    lost = [key for key, state in saved.items() if state and key not in mine]
    fresh = [key for key, state in mine.items() if state and not saved.get(key)]
    found = [f"the checkpoint's state of {key} is not used: this run has none" for key in lost]
    return found + [f"{key} begins anew: the checkpoint has no state of it" for key in fresh]
