"""Checks of updates: clipped, accumulated and stale gradients, lost states, unused averages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from ...averages.ema import EMA
from ...averages.swa import SWA
from ..finding import Evidence, check
from ..seen import Seen, UpdateFacts
from ..update_watch import parameters_of

_BY_SIZE = (torch.optim.SGD, torch.optim.ASGD)
"""Optimizers whose updates are as large as the gradients are."""


def _of_training(seen: Seen) -> list[UpdateFacts]:
    return [one for one in seen.updates if one.phase == "train"]


@check("clipped-away", at="steps")
def norm_clipped_by_a_large_factor(seen: Seen) -> Iterator[Evidence]:
    """The Trainer clips each gradient to a small part of its norm."""
    limit, updates = seen.settings.get("clip_grad_norm"), _of_training(seen)
    if not limit or len(seen.norms) < 10 or not all(isinstance(one.optimizer, _BY_SIZE) for one in updates):
        return
    parts = [norm / limit for norm in seen.norms]
    if min(parts) > 30 and median(parts) > 60:
        yield Evidence(
            f"clip_grad_norm={limit:g} divides every gradient, by {median(parts):.0f} and more",
            f"raise it: gradients have a norm of about {median(seen.norms):.2g}",
        )


@check("clipped-away", at="steps")
def values_clipped_to_their_signs(seen: Seen) -> Iterator[Evidence]:
    """Each element of the gradients is at the limit."""
    limit, updates = seen.settings.get("clip_grad_value"), _of_training(seen)
    if not limit or len(updates) < 10 or not all(isinstance(one.optimizer, _BY_SIZE) for one in updates):
        return
    if all(one.count and one.norm > 0.9 * limit * one.count**0.5 for one in updates):
        yield Evidence(
            f"clip_grad_value={limit:g} cuts nearly every element of every gradient",
            "raise it: only the sign of the gradients is left",
        )


@check("clipped-away", at="steps")
def norm_clipped_by_hand(seen: Seen) -> Iterator[Evidence]:
    """Under manual optimization: every gradient has one and the same small norm."""
    if getattr(seen.module, "automatic_optimization", True):
        return
    for optimizer in {id(one.optimizer): one.optimizer for one in _of_training(seen)}.values():
        norms = [one.norm for one in _of_training(seen) if one.optimizer is optimizer]
        if len(norms) < 10 or not isinstance(optimizer, _BY_SIZE) or not 0 < max(norms) <= 0.02:
            continue
        if max(norms) - min(norms) < 0.02 * max(norms):
            yield Evidence(
                f"every gradient is clipped to a norm of {median(norms):.1g}", "clip at a larger norm"
            )


@check("stale-gradients", at="steps")
def gradients_not_zeroed(seen: Seen) -> Iterator[Evidence]:
    """Updates are made with gradients of which a part was there at an earlier update."""
    updates = _of_training(seen)
    stale = Counter(id(one.optimizer) for one in updates if one.stale)
    for key, count in stale.items():
        optimizer = next(one.optimizer for one in updates if id(one.optimizer) == key)
        number = sum(one.optimizer is optimizer for one in updates)
        if count >= 3:
            named = [name for name, one in seen.parameters.items() if one.parameter in _set_of(optimizer)]
            yield Evidence(
                f"{count} of {number} updates of {named[0] if named else 'an optimizer'} had gradients of "
                "an earlier backward too",
                "call zero_grad() before each backward whose gradients are to stand alone",
            )


def _set_of(optimizer: Any) -> set[Any]:
    return set(parameters_of(optimizer))


@check("optimizer-remade", at="steps")
def state_lost(seen: Seen) -> Iterator[Evidence]:
    """An optimizer has lost its moments several times."""
    lost = len(seen.emptied) + sum(one.emptied for one in seen.updates)
    if lost >= 3:
        yield Evidence(
            f"an optimizer has lost its state {lost} times in {seen.step} steps: momentum starts from zero",
            "make it once, in configure_optimizers, and set rates by a schedule",
        )


@check("optimizer-remade", at="steps")
def other_optimizer_in_each_step(seen: Seen) -> Iterator[Evidence]:
    """Each step makes an optimizer of the module's weights, and uses it once."""
    known = {id(one) for one in seen.trainer.optimizers}
    own = {id(one.parameter) for one in seen.parameters.values()}
    strange = [one.optimizer for one in _of_training(seen) if id(one.optimizer) not in known]
    used = Counter(map(id, strange))
    once = [one for one in strange if used[id(one)] == 1 and own >= {id(p) for p in parameters_of(one)}]
    if len(once) >= 3 and len(once) == len(strange) and any(one.state for one in once):
        yield Evidence(
            f"{len(once)} optimizers were made in {seen.step} steps: momentum starts from zero in each",
            "make it once, in configure_optimizers",
        )


@check("optimizer-remade", at="start")
def fit_for_each_epoch(seen: Seen) -> Iterator[Evidence]:
    """``fit`` is called again and again, for one epoch each, with new optimizers."""
    if seen.fits >= 2 and seen.settings.get("max_epochs") in (1, "1"):
        yield Evidence(
            f"fit number {seen.fits + 1} of one module and loader for one epoch: optimizer and schedule "
            "start again in each",
            "call fit once, with max_epochs",
        )


@check("optimizer-overlap", at="steps")
def two_optimizers_of_one_weight(seen: Seen) -> Iterator[Evidence]:
    """Two optimizers hold the same weights, and both update in the same step."""
    optimizers = [one for one in seen.trainer.optimizers if hasattr(one, "param_groups")]
    together = {(id(one.optimizer), one.step) for one in _of_training(seen)}
    names = {id(one.parameter): name for name, one in seen.parameters.items()}
    for index, one in enumerate(optimizers):
        for other in optimizers[index + 1 :]:
            own, others = ({id(p) for p in parameters_of(each)} for each in (one, other))
            shared = own & others if own != others else set()
            steps = [{step for key, step in together if key == id(each)} for each in (one, other)]
            if shared and len(steps[0] & steps[1]) >= 3:
                yield Evidence(
                    f"two optimizers update the same {len(shared)} weights, such as "
                    f"{names.get(min(shared, key=lambda i: names.get(i, '~')), '?')}",
                    "give each the parameters of its own part",
                )


@check("unused-average", at="end")
def average_never_updated(seen: Seen) -> Iterator[Evidence]:
    """An average of the weights has no point when the run ends."""
    total = seen.trainer.total_steps
    stopped = total is None or seen.trainer.global_step < total
    if seen.step < 8 or stopped or seen.settings.get("fast_dev_run"):
        return
    for callback in seen.trainer.callbacks:
        if isinstance(callback, (EMA, SWA)) and not callback.averaged:
            yield Evidence(
                f"{type(callback).__name__} has averaged nothing in the {seen.step} steps of the run",
                f"let it start earlier: start={callback.start}",
            )
        elif isinstance(callback, EMA) and 0 < seen.step < callback.start:
            yield Evidence(
                f"EMA starts at step {callback.start}, and the run ended after {seen.step}",
                "let it start earlier",
            )
    for name, part in seen.module.named_modules():
        if isinstance(part, AveragedModel) and not int(part.n_averaged):
            yield Evidence(
                f"{name} is an average of weights that was never updated",
                "call its update_parameters() after each step",
            )


@check("unused-average", at="end")
def copy_that_never_follows(seen: Seen) -> Iterator[Evidence]:
    """A part is called an average of another, and is still its first copy at the end."""
    words = ("ema", "average", "averaged", "avg", "shadow", "swa")
    parts = dict(seen.module.named_children())
    for name, part in parts.items():
        if not set(name.lower().split("_")) & set(words) or isinstance(part, AveragedModel):
            continue
        own = [one for n, one in seen.parameters.items() if n.startswith(f"{name}.")]
        if seen.step >= 8 and own and not any(one.changed or one.optimized for one in own):
            yield Evidence(f"{name} has not changed in {seen.step} steps", "update it after each step")


@check("undivided-accumulation", at="steps")
def divided_twice(seen: Seen) -> Iterator[Evidence]:
    """The loss that a step returns is that of its batch divided by ``accumulate``, which divides too."""
    count = seen.settings.get("accumulate") or 1
    if not isinstance(count, int) or count < 2:
        return
    found = 0
    for step, losses in seen.step_losses.items():
        computed = [one.value for one in seen.losses_in("train") if one.step == step]
        if len(computed) != len(losses) or not losses:
            return
        pairs = zip(computed, losses, strict=True)
        if not all(a and abs(a / count - b) <= 1e-4 * abs(b) for a, b in pairs):
            return
        found += 1
    if found >= 2:
        yield Evidence(
            f"training_step divides its loss by {count}, and so does accumulate={count}",
            "return the loss undivided",
        )
