"""Averages of weights: whether they follow, and whether anything uses them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ...callbacks.checks.finding import Evidence
from .probe import probe
from .subject import Subject

_FOLLOWERS = {"ema", "average", "averaged", "avg", "shadow", "teacher", "momentum", "target"}


@probe("unused-average")
def averages_that_nothing_uses(subject: Subject) -> Iterator[Evidence]:
    """An average is updated, and no step or validation calls it."""
    for name, part in subject.module.named_modules():
        facts = subject.seen.layers.get(name)
        is_called = facts is not None and (facts.calls.get("val") or facts.calls.get("train"))
        if isinstance(part, AveragedModel) and int(part.n_averaged) and not is_called:
            yield Evidence(
                f"{name} is an average of weights that no validation uses", f"validate with self.{name}"
            )


@probe("unused-average")
def followers_that_stay(subject: Subject) -> Iterator[Evidence]:
    """A part that is named as one that follows another begins as its copy, and never changes."""
    if isinstance(subject.first, Exception) or subject.trainer.global_step < 8:
        return
    first, parts = dict(subject.first.named_children()), dict(subject.module.named_children())
    for name, part in parts.items():
        if not set(name.lower().split("_")) & _FOLLOWERS or not _are_equal(part, first.get(name)):
            continue
        for other, leader in parts.items():
            is_copied = other != name and _are_equal(first[name], first.get(other))
            if is_copied and not _are_equal(leader, first[other]):
                steps = subject.trainer.global_step
                yield Evidence(
                    f"{name} began as a copy of {other}, and has not changed in {steps} steps",
                    f"let it follow {other} after each step",
                )


def _are_equal(one: nn.Module, other: nn.Module | None) -> bool:
    mine = {name: p.detach().cpu() for name, p in one.named_parameters()}
    others = {} if other is None else {name: p.detach().cpu() for name, p in other.named_parameters()}
    return (
        bool(mine) and mine.keys() == others.keys() and all(torch.equal(mine[n], others[n]) for n in mine)
    )
