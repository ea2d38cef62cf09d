"""Checks of optimizers: rates, decay, and how far weights move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ..attributes import own_weight
from ..finding import Evidence, check
from ..layer_watch import ALL_NORMS
from ..seen import ParameterFacts, Seen
from .schedule_future import futures
from .schedules import is_too_fast

_COUPLED = (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.NAdam, torch.optim.RAdam)


def _trained(seen: Seen) -> dict[str, ParameterFacts]:
    found = seen.parameters.items()
    return {name: one for name, one in found if one.optimized and one.parameter.requires_grad}


def _weights(seen: Seen) -> dict[str, ParameterFacts]:
    """Trained weights that are no biases and no scales of norms, and get gradients."""
    return {n: one for n, one in _trained(seen).items() if one.parameter.dim() > 1 and one.nonzero}


def _nothing_changed(seen: Seen) -> Iterator[Evidence]:
    trained = _trained(seen)
    updates = [one for one in seen.updates if one.phase == "train"]
    if not trained or len(updates) < 5 or any(one.changed for one in trained.values()):
        return
    if not all(one.updates for one in trained.values()):
        return
    number = len({one.step for one in updates})
    rates = [max(one.rates, default=0.0) for one in updates]
    if max(rates) == 0:
        why, cure = "the learning rate is 0", "raise the rate"
    elif all(one.norm == 0 for one in updates):
        why = "gradients are 0 or missing when the optimizer steps"
        cure = "call zero_grad before backward, and see that the loss depends on the weights"
    else:
        why, cure = f"the learning rate is {max(rates):.1e}", "raise the rate"
    yield Evidence(f"no weight changed in {number} steps: {why}", cure)


@check("no-update", at="steps")
def weights_stay(seen: Seen) -> Iterator[Evidence]:
    """No trained weight has changed in ten steps."""
    if seen.step >= 10:
        yield from _nothing_changed(seen)


@check("no-update", at="end")
def weights_stayed(seen: Seen) -> Iterator[Evidence]:
    """No trained weight has changed in a short run."""
    yield from _nothing_changed(seen)


@check("no-update", at="start")
def rate_falls_to_nothing(seen: Seen) -> Iterator[Evidence]:
    """Schedules take the rates to nothing in the first quarter of the run, for good."""
    found = futures(seen)
    for scheduler, future in found if len(found) == len(seen.trainer.optimizers) == 1 else ():
        rates = future.rates[: future.within]
        if len(rates) < 8 or is_too_fast(scheduler, future):
            continue
        highest, rest = max(rates), rates[len(rates) // 4 :]
        if highest > 0 and max(rest) < 1e-5 * highest:
            gone = next(i for i, rate in enumerate(rates) if max(rates[i:]) < 1e-5 * highest)
            yield Evidence(
                f"{future.name} takes the rate from {highest:.1e} to {max(rest):.1e} within "
                f"{future.steps * gone // len(rates)} of {future.steps} {future.unit}s",
                "look at the factor of the schedule, and in which unit it counts",
            )


_MANY = 32
"""Numbers of a weight that is a layer's, and not the slope of a line."""


def _movement(facts: ParameterFacts) -> float:
    return median(facts.relative[1:] or [0.0])


def _gain(parameter: torch.Tensor) -> float:
    """By how much a layer of such weights enlarges what it gets: about 1 is usual."""
    inputs = parameter[0].numel()
    return math.sqrt(float(parameter.detach().float().square().mean()) * inputs)


@check("high-rate", at="steps")
def weights_replaced_in_each_step(seen: Seen) -> Iterator[Evidence]:
    """Updates are as large as the weights, in most layers and steps."""
    facts = [one for one in _weights(seen).values() if len(one.relative) >= 8]
    facts = [one for one in facts if one.parameter.numel() >= _MANY]
    moved = [_movement(one) for one in facts]
    if seen.step < 10 or len(facts) < 2:
        return
    first = median(one.relative[0] for one in facts)
    grown = seen.own_weights and first > 1 and median(_gain(one.parameter) for one in facts) > 4
    if grown:
        yield Evidence(
            f"the first update is {first:.1f} times as large as the weights, and they have grown since",
            "lower the learning rate",
        )
    elif median(moved) > 0.4:
        rate = max((max(one.rates, default=0.0) for one in seen.updates), default=0.0)
        yield Evidence(
            f"each update changes the weights by {100 * median(moved):.0f} % of their size, at a rate of "
            f"{rate:.2g}",
            "lower the learning rate",
        )


@check("low-rate", at="steps")
def weights_hardly_move(seen: Seen) -> Iterator[Evidence]:
    """All steps of the run together change the weights by next to nothing."""
    by_gradient = all(type(one) is torch.optim.SGD for one in seen.trainer.optimizers)
    total = seen.trainer.total_steps or seen.step
    weights = _weights(seen)
    rates = [max(one.rates, default=0.0) for one in seen.updates if one.phase == "train"]
    if total < 20 or seen.step < 10 or not weights or not rates or median(rates) == 0:
        return
    future = [max(one.rates[: one.within]) for _, one in futures(seen)]
    planned = isinstance(next(iter(seen.trainer.lr_schedulers), None), LRScheduler)
    if (planned and not future) or not any(one.changed for one in weights.values()):
        return
    highest = max([*rates, *future])
    moving = [size for one in weights.values() if (size := _movement(one))]  # a rate of 0 may be a group's
    moved = median(moving or [0.0]) * highest / median(rates) * total
    if highest <= 1e-4 and moved < (1e-3 if by_gradient else 5e-5):
        yield Evidence(
            f"at a rate of {highest:.1e} the {total} steps of the run change the weights by "
            f"{100 * moved:.1g} % of their size",
            "raise the learning rate",
        )


def _is_coupled(optimizer: Any) -> bool:
    if any(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
        return False
    return type(optimizer) in _COUPLED


@check("heavy-decay", at="steps")
def decay_outweighs_gradients(seen: Seen) -> Iterator[Evidence]:
    """Decay takes a large part of each weight in a step, or is far larger than the gradients."""
    names = {id(one.parameter): one for one in _weights(seen).values()}
    for optimizer in seen.trainer.optimizers if seen.step >= 3 else ():
        for group in optimizer.param_groups:
            decay, rate = float(group.get("weight_decay") or 0), float(group.get("lr") or 0)
            if not decay:
                continue
            facts = [names[id(p)] for p in group["params"] if id(p) in names]
            if not _is_coupled(optimizer):
                if decay * rate >= 0.02 and type(optimizer) is torch.optim.AdamW:
                    yield Evidence(
                        f"weight_decay={decay:g} takes {100 * decay * rate:.0f} % of each weight in a step",
                        "lower the weight decay: 0.01 to 0.1 is usual",
                    )
                continue
            parts = [
                decay * float(one.parameter.detach().norm()) / (median(one.gradient_norms) or 1e-12)
                for one in facts
                if len(one.gradient_norms) >= 3
            ]
            if parts and ((decay >= 0.05 and median(parts) > 3) or (decay >= 0.2 and median(parts) > 0.5)):
                yield Evidence(
                    f"weight_decay={decay:g} adds {median(parts):.1g} times the gradients to them",
                    "lower the weight decay: 1e-4 is usual where it is added to gradients",
                )


@check("heavy-decay", at="end")
def weights_shrink(seen: Seen) -> Iterator[Evidence]:
    """Weights end far smaller than they began, and gradients point along them: a penalty does that."""
    facts = list(_weights(seen).values())
    if len(facts) < 2 or seen.step < 10:
        return
    left = median(one.size_left for one in facts)
    decays = [
        float(group.get("weight_decay") or 0)
        for optimizer in seen.trainer.optimizers
        for group in optimizer.param_groups
    ]
    if max(decays) == 0 and left < 0.5 and all(median(one.alignment or [0.0]) > 0.4 for one in facts):
        yield Evidence(
            f"weights have {100 * left:.0f} % of their first size after {seen.step} steps, and gradients "
            "point along them",
            "give the penalty on weights a small factor, such as 1e-4",
        )


@check("heavy-decay", at="steps")
def penalty_outweighs_the_loss(seen: Seen) -> Iterator[Evidence]:
    """All gradients point along the weights themselves, as those of a penalty on their squares do."""
    facts = [one for one in _weights(seen).values() if len(one.alignment) >= 8]
    if seen.step >= 10 and len(facts) > 1 and all(median(one.alignment) > 0.95 for one in facts):
        yield Evidence(
            "the gradient of every weight points along the weight itself: a penalty on weights outweighs "
            "the loss",
            "give the penalty a small factor, such as 1e-4",
        )


def _norm_weights(seen: Seen) -> set[int]:
    norms = (part for part in seen.module.modules() if isinstance(part, ALL_NORMS))
    return {id(weight) for weight in map(own_weight, norms) if weight is not None}


@check("decay-on-norms", at="start")
def groups_that_miss_the_norms(seen: Seen) -> Iterator[Evidence]:
    """Biases are kept from weight decay by a group of their own, and scales of norms are not."""
    norms = _norm_weights(seen)
    for optimizer in seen.trainer.optimizers:
        decays = [group for group in optimizer.param_groups if group.get("weight_decay")]
        kept = [group for group in optimizer.param_groups if not group.get("weight_decay")]
        spared = [p for group in kept for p in group["params"]]
        caught = [p for group in decays for p in group["params"] if id(p) in norms]
        if caught and spared and all(p.dim() <= 1 and id(p) not in norms for p in spared):
            yield Evidence(
                f"weight decay is kept from biases, and applied to {len(caught)} scales of norms",
                "look at the names by which groups are made: norms belong beside the biases",
            )
