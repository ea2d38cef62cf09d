"""Whether training gets anywhere: the loss of the fit, of short fits at other rates, and of one batch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ...callbacks import Callback
from ...callbacks.checks.finding import Evidence
from .of_layers import training_step
from .probe import probe
from .subject import Recorder, Subject
from .terms import terms_of
from .trials import short_fit

_FEWEST, _MOST = 10, 60
_OVERFIT_STEPS, _OVERFIT_SECONDS, _OVERFIT_FALL = 60, 10.0, 0.05
_WITH_A_FLOOR = ("cross_entropy", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits")


class _Rates(Callback):
    """Multiplies all learning rates by a factor."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def on_fit_start(self, trainer: Any) -> None:
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                for key in ("lr", "initial_lr"):
                    if key in group:
                        group[key] = group[key] * self._factor
        for scheduler in trainer.lr_schedulers:
            if hasattr(scheduler, "base_lrs"):
                scheduler.base_lrs = [rate * self._factor for rate in scheduler.base_lrs]


def losses_at(subject: Subject, factor: float, steps: int) -> list[float]:
    """The losses of a fit of a fresh copy at other rates.

    Raises:
        LookupError: where the module cannot be copied.
    """
    record = Recorder()
    short_fit(subject, subject.copy(trained=False), [record, _Rates(factor)], steps)
    return record.losses


def _ends(losses: list[float]) -> tuple[float, float]:
    """The mean of the first and of the last losses."""
    few = max(2, len(losses) // 6)
    return fmean(losses[: min(few, 4)]), fmean(losses[-few:])


@probe("high-rate")
def lower_rates_learn_more(subject: Subject) -> Iterator[Evidence]:
    """The loss does not fall, and at a thirtieth of the rates it falls a lot."""
    losses = subject.record.losses[: _MOST * 3]
    if len(losses) < _FEWEST or not subject.module.automatic_optimization:
        return
    start, end = _ends(losses)
    moves = [max(f.relative[1:4]) for f in subject.seen.parameters.values() if len(f.relative) > 3]
    is_suspect = (
        not math.isfinite(end) or end > 0.95 * start or (moves and sorted(moves)[len(moves) // 2] > 0.5)
    )
    if not is_suspect or start <= 0:
        return
    other = losses_at(subject, 1 / 30, min(len(losses), _MOST))
    if len(other) < _FEWEST:
        return
    _, lower = _ends(other)
    first = other[0]
    if math.isfinite(lower) and lower < 0.8 * first and (not math.isfinite(end) or lower < 0.7 * end):
        yield Evidence(
            f"the loss goes from {start:.3g} to {end:.3g}, and at a thirtieth of the rate to {lower:.3g}",
            "take a lower learning rate: paceline.tools.find_learning_rate tries them out",
        )


@probe("low-rate")
def higher_rates_learn_more(subject: Subject) -> Iterator[Evidence]:
    """The loss hardly falls, and at a hundred times the rates it falls a lot."""
    losses = subject.record.losses
    if len(losses) < _FEWEST or subject.is_cut or not subject.module.automatic_optimization:
        return
    start, end = _ends(losses)
    if not math.isfinite(end) or start <= 0 or not 0.97 * start < end < 1.03 * start:
        return
    moves = [max(f.relative) for f in subject.seen.parameters.values() if f.relative]
    if not moves or max(moves) > 1e-3:
        return
    other = losses_at(subject, 100.0, min(len(losses), _MOST))
    if len(other) < _FEWEST:
        return
    _, higher = _ends(other)
    if math.isfinite(higher) and higher < 0.75 * end:
        yield Evidence(
            f"the loss goes from {start:.4g} to {end:.4g}, and at 100 times the rate to {higher:.3g}",
            "take a larger learning rate: paceline.tools.find_learning_rate tries them out",
        )


@probe("cannot-overfit")
def one_batch_is_not_learned(subject: Subject) -> Iterator[Evidence]:
    """A short training on one batch does not lower its loss, at any of three rates.

    The draws of each step are the same, and so is all that is not trained: a queue, a teacher, running
    statistics. Adam is the optimizer, whatever the fit has: this is about the module and the data.
    """
    losses = subject.seen.losses_in("train", *_WITH_A_FLOOR)
    if not subject.train_batches or not all(one.target.whole for one in losses):
        return  # the least loss of soft targets is not 0
    until, lowest = time.monotonic() + _OVERFIT_SECONDS, math.inf
    for rate in (1e-3, 1e-2, 1e-4):
        found: list[float] = []
        for loss in _losses_of_one_batch(subject, rate):
            found.append(loss)
            first, lowest = found[0], min(lowest, loss)
            if not math.isfinite(first) or first <= 0 or first - lowest >= _OVERFIT_FALL * first:
                return  # below 0 are likelihoods and similarities, whose least value is not 0 either
            if len(found) == 2 and not math.isclose(first, loss, rel_tol=1e-3):
                raise LookupError("the loss of one batch changes without a step")
            if time.monotonic() > until:
                raise LookupError("a step takes too long to train on one batch")
    if _is_at_an_optimum(subject, first):
        return
    yield Evidence(
        f"{_OVERFIT_STEPS} steps of Adam on one and the same batch bring its loss from {first:.4g} to "
        f"{lowest:.4g} at best",
        "look at what the outputs depend on: layers that are dead or saturated, a mask, a factor of 0, "
        "targets of another scale",
    )


def _is_at_an_optimum(subject: Subject, loss: float) -> bool:
    """Whether other weights change the loss of the first batch: what was learned before cannot fall."""
    for seed in range(3):
        module, generator = subject.copy(trained=False), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in subject.trained_weights(module):
                noise = torch.randn(weight.shape, generator=generator).to(weight)
                weight.add_(0.3 * weight.square().mean().sqrt() * noise)
        moved = subject.step(module, subject.train_batches[0]).loss
        if moved is None or abs(float(moved.detach()) - loss) >= _OVERFIT_FALL * loss:
            return True
    return False


def _losses_of_one_batch(subject: Subject, rate: float) -> Iterator[float]:
    """The loss of one batch, twice, then after each step on it.

    Raises:
        LookupError: where a step gives no loss.
    """
    batch, module = subject.train_batches[0], subject.copy(trained=False)
    trained = subject.trained_weights(module)
    moving = {id(one) for one in trained}
    kept = [one for one in (*module.parameters(), *module.buffers()) if id(one) not in moving]
    values = [one.detach().clone() for one in kept]
    optimizer = torch.optim.Adam(trained, rate)
    for step in range(_OVERFIT_STEPS + 2):
        with torch.no_grad():
            for one, value in zip(kept, values, strict=True):
                one.copy_(value)
        loss = subject.step(module, batch).loss
        if loss is None or not loss.requires_grad:
            raise LookupError("training_step gives no loss with a gradient")
        yield float(loss.detach())
        if step:
            optimizer.zero_grad()
            loss.backward()
            for weight in trained:
                if weight.grad is not None and weight.grad.is_sparse:
                    weight.grad = weight.grad.to_dense()
            optimizer.step()


@probe("negated-loss")
def losses_with_a_minus(subject: Subject) -> Iterator[Evidence]:
    """The only loss of a step counts with a minus."""
    _, step = training_step(subject)
    losses = [one for one in step.losses if isinstance(one.result, Tensor) and one.result.requires_grad]
    if step.loss is None or not step.loss.requires_grad:
        return
    if not losses:
        yield from _similarity_that_falls(step.loss, step.scores)
    if len(losses) != 1 or float(step.loss) >= 0:
        return
    result = losses[0].result
    effect = torch.autograd.grad(step.loss, result, allow_unused=True)[0]
    if effect is not None and bool((effect < 0).all()) and float(result.detach().min()) >= 0:
        yield Evidence(
            f"the loss is minus the {losses[0].function}: training makes it larger", "take the minus away"
        )


def _similarity_that_falls(loss: Tensor, scores: dict[str, list[Tensor]]) -> Iterator[Evidence]:
    """The loss is a similarity of outputs, or the likelihood of data, without a minus."""
    for what, results in scores.items():
        effects = torch.autograd.grad(loss, results, retain_graph=True, allow_unused=True)
        known = [one for one in effects if one is not None]
        if known and all(bool((one > 0).all()) for one in known) and len(terms_of(loss)) <= len(known):
            yield Evidence(f"the loss is the {what}: training makes it smaller", "put a minus before it")
