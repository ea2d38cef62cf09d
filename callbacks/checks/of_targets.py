"""Checks of outputs against their targets: ranges, scales, classes and ignored labels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from .finding import Evidence, check
from .of_layers import rows_of_batches, sites
from .seen import LossCall, Seen, TensorFacts

_REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_RANGES = {
    "Relu": (0.0, float("inf"), "a ReLU"),
    "Softplus": (0.0, float("inf"), "a softplus"),
    "Sigmoid": (0.0, 1.0, "a sigmoid"),
    "Hardsigmoid": (0.0, 1.0, "a sigmoid"),
    "Tanh": (-1.0, 1.0, "a tanh"),
    "Softmax": (0.0, 1.0, "a softmax"),
}
_OUTSIDE, _MARGIN = 0.05, 0.05
_LARGE, _TIMES = 100.0, 50.0
_IGNORED = 0.99
_MANY_CLASSES = 100


@check("unreachable-targets", at="steps")
def targets_outside_of_an_activation(seen: Seen) -> Iterator[Evidence]:
    """The last activation cannot give what the targets are."""
    for calls in sites(seen.losses_in("train", *_REGRESSION)):
        found = [_unreachable(call) for call in calls]
        if len(calls) > 2 and all(found):
            yield Evidence(
                found[0] or "", "leave the last activation out, or scale the targets into its range"
            )


def _unreachable(call: LossCall) -> str | None:
    output, target = call.output, call.target
    if target.requires_grad and not output.requires_grad:
        output, target = target, output
    if output.origin not in _RANGES or not output.requires_grad or target.requires_grad:
        return None
    low, high, name = _RANGES[output.origin]
    values = target.sample.float()
    outside = (
        ((values < low - _MARGIN) | (values > high + _MARGIN)).float().mean().item() if len(values) else 0
    )
    if outside < _OUTSIDE:
        return None
    reach = f"{target.minimum:.2g} to {target.maximum:.2g}"
    return f"outputs are those of {name}, and {outside:.0%} of the targets ({reach}) are out of its range"


@check("target-scale", at="steps")
def targets_far_from_all_outputs(seen: Seen) -> Iterator[Evidence]:
    """Targets of a regression are larger than outputs by orders of magnitude."""
    for calls in sites(seen.losses_in("train", *_REGRESSION)):
        if len({call.step for call in calls}) < 3:
            continue
        if all(_size(c.target) > _LARGE and _size(c.target) > _TIMES * _size(c.output) for c in calls):
            yield Evidence(
                f"targets of {calls[0].function} are about {_size(calls[-1].target):.2g}, and outputs "
                f"{_size(calls[-1].output):.2g} after {calls[-1].step} steps",
                "scale the targets to a deviation of about 1",
            )


def _size(facts: TensorFacts) -> float:
    return float((facts.mean**2 + facts.std**2) ** 0.5)


@check("one-hot-targets", at="steps")
def several_classes_in_cross_entropy(seen: Seen) -> Iterator[Evidence]:
    """Targets of cross_entropy have several ones in a row: they are no distribution."""
    for calls in sites(seen.losses_in("train", "cross_entropy")):
        if all(_is_multi_hot(call.target) for call in calls):
            yield Evidence(
                "cross_entropy gets targets with several ones in a row, as if each sample had one class",
                "use binary_cross_entropy_with_logits for several labels",
            )


def _is_multi_hot(facts: TensorFacts) -> bool:
    if len(facts.shape) != 2 or "float" not in facts.dtype or not facts.whole:
        return False
    if facts.minimum < 0 or facts.maximum > 1 or facts.shape[1] < 2:
        return False
    rows = facts.sample[: len(facts.sample) // facts.shape[1] * facts.shape[1]].reshape(-1, facts.shape[1])
    return bool((rows.sum(1) > 1).float().mean() > 0.2)


def _spare_classes(seen: Seen) -> Iterator[tuple[int, int, int]]:
    """Of losses with fewer labels than classes: the classes, the largest label, and how many were seen."""
    vocabularies = {p.num_embeddings for p in seen.module.modules() if isinstance(p, nn.Embedding)}
    for calls in sites(seen.losses_in("train", "cross_entropy", "nll_loss")):
        whole = [c for c in calls if "int" in c.target.dtype and len(c.output.shape) > 1]
        if not whole or len(whole) < len(calls):
            continue
        classes, most = whole[0].output.shape[1], int(max(c.target.maximum for c in whole))
        square = whole[0].output.shape[0] == classes
        if 0 < most < classes - 1 and classes not in vocabularies and not square:
            yield classes, most, sum(len(c.target.sample) for c in whole)


@check("surplus-outputs", at="end")
def nearly_all_outputs_without_labels(seen: Seen) -> Iterator[Evidence]:
    """Hundreds of classes for a handful of labels: the head of a pretrained network."""
    for classes, most, count in _spare_classes(seen):
        if classes >= _MANY_CLASSES and (most + 1) * 20 <= classes and count >= 64:
            yield Evidence(
                f"{classes} classes are computed, and no label of {count} was above {most}",
                f"replace the last layer by one with {most + 1} outputs",
            )


@check("ignored-labels", at="steps")
def labels_that_are_ignored(seen: Seen) -> Iterator[Evidence]:
    """Nearly all labels of cross_entropy are its ignore_index; or a class is."""
    for calls in sites(seen.losses_in("train", "cross_entropy", "nll_loss")):
        whole = [c for c in calls if "int" in c.target.dtype and len(c.target.sample)]
        if len(whole) < 3:
            continue
        shares = [(c.target.sample == _ignored(c)).float().mean().item() for c in whole]
        if min(shares) >= _IGNORED or (sum(share == 1 for share in shares) * 2 > len(shares)):
            yield Evidence(
                f"{min(shares):.1%} or more of the labels of a step are {_ignored(whole[0])}, and ignored",
                "look at how labels are masked",
            )
        elif all(_ignores_a_class(seen, c) for c in whole) and max(shares) > 0:
            yield Evidence(
                f"ignore_index={_ignored(whole[0])} is a class: {max(shares):.0%} of labels do not count",
                "leave ignore_index out, or number classes so that it is none",
            )


def _ignored(call: LossCall) -> int:
    return int(call.options.get("ignore_index", -100))


def _ignores_a_class(seen: Seen, call: LossCall) -> bool:
    classes = call.output.shape[1] if len(call.output.shape) > 1 else 0
    single = (
        len(call.target.shape) == 1
        and call.target.from_batch
        and call.target.shape[0] in rows_of_batches(seen)
    )
    return single and 0 <= _ignored(call) < classes


@check("padding-in-loss", at="steps")
def padded_positions_that_count(seen: Seen) -> Iterator[Evidence]:
    """Targets end in the number that an embedding takes as padding, and the loss counts it."""
    vocabularies = {
        (p.num_embeddings, _padding(seen, p)) for p in seen.module.modules() if isinstance(p, nn.Embedding)
    }
    for calls in sites(seen.losses_in("train", "cross_entropy", "nll_loss")):
        for classes, padding in vocabularies:
            if padding is None or not all(_counts(call, classes, padding) for call in calls):
                continue
            share = max((c.target.sample == padding).float().mean().item() for c in calls)
            if share >= 0.05:
                yield Evidence(
                    f"{share:.0%} of the targets are {padding}, the padding index, and count in the loss",
                    f"give {calls[0].function} ignore_index={padding}",
                )


def _padding(seen: Seen, embedding: nn.Embedding) -> int | None:
    """The index that an embedding takes as padding; or 0, where rows of the batch end in it alone."""
    if embedding.padding_idx is not None:
        return int(embedding.padding_idx)
    for batch in seen.batches.get("train", [])[:3]:
        for facts in (*batch.inputs.values(), *batch.targets.values()):
            if (
                len(facts.shape) != 2
                or "int" not in facts.dtype
                or facts.maximum >= embedding.num_embeddings
            ):
                continue
            rows = facts.sample[: len(facts.sample) // facts.shape[1] * facts.shape[1]].reshape(
                -1, facts.shape[1]
            )
            tokens = rows != 0
            lengths = tokens.sum(1)
            ends = tokens == (torch.arange(rows.shape[1]) < lengths[:, None])
            if bool(ends.all()) and facts.maximum > 1 and len(lengths.unique()) > 2:
                return 0
    return None


def _counts(call: LossCall, classes: int, padding: int) -> bool:
    axis = 1 if len(call.output.shape) > 1 else 0
    counted = _ignored(call) != padding and call.options.get("reduction", "mean") != "none"
    ignores = bool((call.target.sample == _ignored(call)).any())  # padding has another number, as have ends
    tokens = (
        "int" in call.target.dtype
        and call.output.shape[axis] == classes
        and call.options.get("weight") is None
    )
    return counted and tokens and not ignores and call.value is not None


@check("unshifted-labels", at="steps")
def targets_that_are_the_inputs(seen: Seen) -> Iterator[Evidence]:
    """A language model's targets are the tokens that it is given, at the same positions."""
    embeddings = {name: p for name, p in seen.module.named_modules() if isinstance(p, nn.Embedding)}
    called = [name for name in embeddings if name in seen.layers and seen.layers[name].first_input]
    for calls in sites(seen.losses_in("train", "cross_entropy", "nll_loss")):
        first = calls[0]
        for name in called:
            facts = seen.layers[name]
            given = facts.first_input
            same_size = given is not None and embeddings[name].num_embeddings in first.output.shape[1:]
            once = facts.calls.get("train", 0) <= len({call.step for call in calls})
            if given is None or not same_size or not once or "int" not in first.target.dtype:
                continue
            count = len(given.sample)
            one, two = given.sample.reshape(-1), first.target.sample.reshape(-1)[:count]
            if len(two) != count or given.std == 0 or len(one.unique()) < 4:
                continue
            kept = two != _ignored(first)
            if bool(kept.any()) and torch.equal(one[kept], two[kept]) and kept.float().mean() > 0.3:
                yield Evidence(
                    f"{first.function} compares an output with the token that {name} got at its position",
                    "predict the next one: logits[:, :-1] with tokens[:, 1:]",
                )
                return
