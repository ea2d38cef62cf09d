"""Checks of the loss: what it is given, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .finding import Evidence, check
from .of_layers import sites
from .seen import LossCall, Seen, TensorFacts

_CLOSE = 1e-6
_BINARY = {"binary_cross_entropy_with_logits", "multilabel_soft_margin_loss", "soft_margin_loss"}
_SQUASHED = {"Sigmoid", "Softmax"}
_ELEMENTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss", "kl_div")
_ENOUGH_STEPS = 3
_MEANS = {"Mean", "Sum", "LinalgVectorNorm"}


@check("softmax-twice", at="steps")
def probabilities_in_cross_entropy(seen: Seen) -> Iterator[Evidence]:
    """Cross-entropy computes a softmax itself."""
    for calls in sites(seen.losses_in("train", "cross_entropy")):
        if all(call.output.sums_to_one and call.output.requires_grad for call in calls):
            yield Evidence(
                "cross_entropy gets probabilities: a softmax comes before it, and it computes one itself",
                "give it the outputs before the softmax",
            )


@check("softmax-twice", at="steps")
def no_log_probabilities_in_nll_loss(seen: Seen) -> Iterator[Evidence]:
    """nll_loss and kl_div take the logarithm of probabilities, which is never above 0."""
    for calls in sites(seen.losses_in("train", "nll_loss")):
        if all(call.output.maximum > 0.01 and call.output.requires_grad for call in calls):
            given = (
                "probabilities"
                if calls[0].output.sums_to_one
                else f"values up to {calls[0].output.maximum:.2g}"
            )
            yield Evidence(
                f"nll_loss gets {given}: it takes log-probabilities, which are at most 0",
                "put log_softmax before it, or use cross_entropy",
            )
    for calls in sites(seen.losses_in("train", "kl_div")):
        if all(
            c.output.sums_to_one and c.output.requires_grad and not c.target.requires_grad for c in calls
        ):
            yield Evidence(
                "kl_div gets probabilities as its input: it takes log-probabilities there",
                "give it log_softmax(...) as the input",
            )


@check("sigmoid-twice", at="steps")
def probabilities_in_binary_cross_entropy(seen: Seen) -> Iterator[Evidence]:
    """binary_cross_entropy_with_logits computes a sigmoid itself."""
    for calls in sites(seen.losses_in("train", *_BINARY)):
        if all(_is_squashed(call.output) for call in calls):
            yield Evidence(
                f"{calls[0].function} gets values between {calls[0].output.minimum:.2f} and "
                f"{calls[0].output.maximum:.2f}, after a sigmoid: it computes one itself",
                "give it the outputs before the sigmoid",
            )


def _is_squashed(facts: TensorFacts) -> bool:
    inside = facts.minimum >= 0 and facts.maximum <= 1
    return inside and facts.requires_grad and facts.origin in _SQUASHED


@check("swapped-arguments", at="steps")
def target_before_output(seen: Seen) -> Iterator[Evidence]:
    """The second argument of a loss that is not symmetric has the gradient, and the first is data."""
    functions = (
        "cross_entropy",
        "nll_loss",
        *_BINARY,
        "binary_cross_entropy",
        "kl_div",
        "poisson_nll_loss",
    )
    for calls in sites(seen.losses_in("train", *functions)):
        if not all(c.target.requires_grad and not c.output.requires_grad for c in calls):
            continue
        name = calls[0].function
        if name == "kl_div" and not all(_is_plain_target(c) for c in calls):
            continue  # the other direction of a divergence may be meant
        yield Evidence(
            f"{name} gets the target first, and the network's output second",
            f"call {name}(output, target)",
        )


def _is_plain_target(call: LossCall) -> bool:
    return (
        call.output.from_batch
        or call.output.minimum >= 0
        or (call.target.maximum <= 0 and not call.options.get("log_target"))
    )


@check("broadcast-loss", at="steps")
def loss_of_all_pairs(seen: Seen) -> Iterator[Evidence]:
    """An output (N, 1) against a target (N,): each is compared with all."""
    for call in seen.losses_in("train", *_ELEMENTWISE):
        one, two = call.output.shape, call.target.shape
        if one and two and _grows(one, two):
            yield _pairs(call.function, one, two)
            return
    for phase_call in seen.calls_of("sub", "mul"):
        if len(phase_call.inputs) != 2:
            continue
        given, other = sorted(phase_call.inputs, key=lambda facts: facts.requires_grad)
        if not _is_column_and_row(given.shape, other.shape):
            continue
        output_and_target = not given.requires_grad and other.requires_grad and other.made_by
        if phase_call.function == "sub" and output_and_target and given.from_batch:
            yield _pairs("a difference", other.shape, given.shape)
            return
        weighted = output_and_target and len(other.shape) == 1
        if phase_call.function == "mul" and weighted and (given.from_batch or other.origin in _MEANS):
            yield Evidence(
                f"errors of shape {other.shape} are multiplied by weights of {given.shape}: each by all",
                "give both one shape, as by weights.squeeze(1)",
            )
            return


def _is_column_and_row(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    long, short = (one, two) if len(one) > len(two) else (two, one)
    return len(long) == 2 and len(short) == 1 and long == (short[0], 1) and short[0] > 1


def _grows(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Whether two shapes make a larger one together than either has."""
    width = max(len(one), len(two))
    padded = [(1,) * (width - len(shape)) + shape for shape in (one, two)]
    together = math.prod(max(pair) for pair in zip(*padded, strict=True))
    return bool(together > max(math.prod(one), math.prod(two)))


def _pairs(what: str, one: tuple[int, ...], two: tuple[int, ...]) -> Evidence:
    return Evidence(
        f"{what} of an output of shape {one} and a target of shape {two}: each is compared with all others",
        "give both one shape, as by output.squeeze(1)",
    )


def single_losses(seen: Seen) -> dict[int, float]:
    """What the training step returned, of watched steps of one micro-batch with a loss."""
    return {step: losses[0] for step, losses in seen.step_losses.items() if len(losses) == 1}


@check("constant-loss", at="steps")
def loss_that_never_changes(seen: Seen) -> Iterator[Evidence]:
    """The training step returns one number, whatever the batch."""
    losses = single_losses(seen)
    if len(losses) < _ENOUGH_STEPS + (seen.step >= 10) or len(_different_batches(seen)) < 2:
        return
    first = losses[min(losses)]
    if all(abs(loss - first) <= _CLOSE * abs(first) for loss in losses.values()):
        yield Evidence(
            f"the loss was {first:.6g} in each of {len(losses)} steps, whatever the batch and the weights",
            "compare the outputs with the targets, before anything takes their gradients",
        )


def _different_batches(seen: Seen) -> set[tuple[int, ...]]:
    return {tuple(batch.rows) for batch in seen.batches.get("train", ())}


@check("negated-loss", at="steps")
def loss_that_is_maximised(seen: Seen) -> Iterator[Evidence]:
    """The training step returns minus what a loss has computed."""
    losses = single_losses(seen)
    if len(losses) < _ENOUGH_STEPS or not seen.module.automatic_optimization:
        return
    if len(seen.trainer.optimizers) != 1 or not all(p.requires_grad for p in seen.module.parameters()):
        return  # what is trained may be to fool what is frozen
    for calls in sites(seen.losses_in("train")):
        values = {call.step: call.value for call in calls if call.value is not None}
        if values.keys() >= losses.keys() and all(_is_minus(losses[step], values[step]) for step in losses):
            yield Evidence(
                f"training_step returns minus {calls[0].function}: training makes it as large as it can",
                "return it without the minus",
            )
            return


def _is_minus(returned: float, value: float | None) -> bool:
    return value is not None and value > 0 and abs(returned + value) <= 1e-5 * value
