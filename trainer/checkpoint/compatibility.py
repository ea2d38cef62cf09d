"""How a run differs from the one a checkpoint is of: one report, by name, before anything is loaded."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ...callbacks import Callback
from ...errors import PacelineError, shown
from ...strategies import Strategy
from ..optimization import Optimization
from .optimizer_settings import OPTIMIZER
from .weights import model_shapes, refuse, weight_differences

ALLOWED = ("data", OPTIMIZER)
OTHER_DATA = 'fit(..., allow="data") resumes with other data; the current epoch starts again'


class Comparable(Protocol):
    """A run, as far as it is compared with a checkpoint."""

    @property
    def module(self) -> Any:
        """The ``TrainModule``."""

    @property
    def strategy(self) -> Strategy:
        """Knows the shapes of sharded tensors."""

    @property
    def optimization(self) -> Optimization:
        """Optimizers and schedules."""

    @property
    def feed(self) -> Any:
        """The training data, with ``fingerprint()``."""


def check_allowed(allow: str | Collection[str]) -> frozenset[str]:
    """What ``fit(allow=...)`` lets differ.

    Raises:
        PacelineError: for anything but ``"data"`` and ``"optimizer"``.
    """
    given: Any = allow
    names = list(given) if isinstance(given, (list, tuple, set, frozenset)) else [given]
    wrong = [name for name in names if not (isinstance(name, str) and name in ALLOWED)]
    if wrong:
        raise PacelineError(
            "fit(allow=...) names what may differ from the checkpoint",
            code="unknown-choice",
            got=", ".join(map(shown, wrong)),
            allowed=" or ".join(map(repr, ALLOWED)),
        )
    return frozenset(names)


def refuse_differences(
    run: Comparable,
    folder: Path,
    manifest: dict[str, Any],
    state: dict[str, Any],
    shapes: dict[str, list[int]],
    allow: Collection[str],
) -> dict[str, Tensor]:
    """See that the run can be resumed from the checkpoint. To be called on all ranks.

    Args:
        run: The run that is to resume: its module, optimizers, schedules and data.
        folder: The checkpoint, for messages.
        manifest: The manifest of the checkpoint.
        state: The decoded state.json of the checkpoint.
        shapes: The shape of each tensor in the checkpoint, by name.
        allow: What may differ: ``"data"``.

    Returns:
        The module's tensors.

    Raises:
        PacelineError: one report of every difference in model, optimizers, schedules and data.
    """
    mine = run.strategy.weights.module_tensors(run.module)
    found = weight_differences(mine, model_shapes(shapes), run.module)
    found += _optimizers(run, state["optimizers"]) + _schedules(run.optimization, state["schedulers"])
    fix = None
    if not run.feed.reloads and "data" not in allow and (data := data_differences(run.feed, manifest)):
        found += data
        fix = OTHER_DATA
    refuse("cannot resume from this checkpoint", folder, found, fix)
    return mine


def data_differences(feed: Any, manifest: dict[str, Any]) -> list[str]:
    """How the training data differs from the checkpoint's."""
    then, now = manifest["data"], feed.fingerprint()
    if ("loaders" in then) != ("loaders" in now):
        several = "several loaders in the checkpoint, one now"
        return [
            "training data: "
            + (several if "loaders" in then else "one loader in the checkpoint, several now")
        ]
    return [
        f"training data: {key} {then[key]} in the checkpoint, {now[key]} now"
        for key in then
        if key in now and then[key] != now[key]
    ]


def _optimizers(run: Comparable, saved: dict[str, Any]) -> list[str]:
    optimizers = run.optimization.optimizers
    if set(saved) != {str(index) for index in range(len(optimizers))}:
        return [f"{len(saved)} optimizers in the checkpoint, {len(optimizers)} now"]
    found: list[str] = []
    for index, optimizer in enumerate(optimizers):
        then, name = saved[str(index)], type(optimizer).__name__
        _, now = run.strategy.weights.optimizer_state(run.module, optimizer)
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


def _schedules(optimization: Optimization, saved: list[dict[str, Any]]) -> list[str]:
    now = [type(s.scheduler).__name__ for s in optimization.schedules]
    then = [s["class"] for s in saved]
    if now == then:
        owners = [optimization.optimizer_of(s) for s in optimization.schedules]
        return [
            f"schedule {index}: optimizer {one['optimizer']}'s in the checkpoint, {owner}'s now"
            for index, (one, owner) in enumerate(zip(saved, owners, strict=True))
            if one.get("optimizer", owner) != owner
        ]
    shown = [", ".join(names) or "none" for names in (then, now)]
    return [f"learning rate schedules: {shown[0]} in the checkpoint, {shown[1]} now"]


def callback_differences(callbacks: list[Callback], saved: dict[str, Any]) -> list[str]:
    """Callbacks whose state is not used, and those that find none: reported, not refused."""
    mine = {c.state_key: c.state_dict() for c in callbacks}
    lost = [key for key, state in saved.items() if state and key not in mine]
    fresh = [key for key, state in mine.items() if state and not saved.get(key)]
    found = [f"the checkpoint's state of {key} is not used: this run has no such callback" for key in lost]
    return found + [f"{key} starts from scratch: the checkpoint has no state for it" for key in fresh]
