"""Checks of metrics: how outputs become predictions, are compared with targets, and are averaged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import nn

from .attributes import TENSORS, UPDATES
from .finding import Evidence, check
from .of_measurement import words_of
from .seen import FunctionCall, LossCall, Seen


def _is_row_and_column(shapes: list[tuple[int, ...]]) -> int:
    """N, where one of two shapes is (N, 1) and the other (N,), for N above 1; else 0."""
    if len(shapes) != 2:
        return 0
    row, column = sorted(shapes, key=len)
    return row[0] if len(row) == 1 and column == (row[0], 1) and row[0] > 1 else 0


@check("broadcast-metric", at="validation")
def comparison_of_a_row_and_a_column(seen: Seen) -> Iterator[Evidence]:
    """Predictions (N, 1) are compared with targets (N,), each with all others."""
    batches = seen.batches.get("val", [])
    targets = {one.shape for batch in batches for one in batch.targets.values()}
    for call in seen.calls_of("eq", "ne", "sub", phase="val"):
        size = _is_row_and_column([one.shape for one in call.inputs])
        if not size or call.inputs[0].memory == call.inputs[1].memory:
            continue
        guesses = [one.shape for one in call.inputs if one.shape not in targets]
        if len(guesses) != 1 or not _is_a_guess(seen, call, guesses[0]):
            continue
        what = "subtracts" if call.function == "sub" else "compares"
        yield Evidence(
            f"validation {what} tensors of shapes {call.inputs[0].shape} and {call.inputs[1].shape}: "
            f"{size} x {size} results",
            "give both one shape: squeeze(-1) of the outputs",
        )


def _is_a_guess(seen: Seen, call: FunctionCall, shape: tuple[int, ...]) -> bool:
    """Whether the module gives outputs of (N, 1), or a threshold or an argmax gave this shape."""
    if call.function == "sub":
        outputs = [facts.output.shape for facts in seen.layers.values() if facts.output is not None]
        return any(len(one) == 2 and one[1] == 1 for one in outputs)
    makers = seen.calls_of("gt", "ge", "lt", "round", "argmax", phase=call.phase)
    return any(one.result is not None and one.result.shape == shape for one in makers)


@check("logits-as-probabilities", at="validation")
def threshold_on_logits(seen: Seen) -> Iterator[Evidence]:
    """Outputs that the loss takes for logits are compared with 0.5, or rounded."""
    losses = list(seen.losses_in("train", "binary_cross_entropy_with_logits"))
    if not losses or any(True for _ in seen.calls_of("sigmoid", "softmax", phase="val")):
        return
    forms = {_form(one.output.shape) for one in losses}
    for call in seen.calls_of("gt", "ge", "lt", "round", phase="val"):
        given = call.inputs[0] if call.inputs else None
        if given is None or given.from_batch or not given.dtype.startswith(("float", "bfloat")):
            continue
        cut = call.function == "round" and (given.minimum == 0 or given.maximum == 1)
        if given.whole or (0 <= given.minimum <= given.maximum <= 1 and not cut):
            continue  # labels, or probabilities
        at_half = call.function == "round" or 0.5 in call.options.values()
        if at_half and _form(given.shape) in forms:
            yield Evidence(
                "validation "
                + ("rounds logits" if call.function == "round" else "compares logits with 0.5")
                + ", and there is no sigmoid before it",
                "compare logits with 0, or take their sigmoid first",
            )


def _form(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a row, without axes of 1."""
    return tuple(n for n in shape[1:] if n != 1)


def _own_losses(seen: Seen) -> list[LossCall]:
    return list(seen.losses_in("train", "cross_entropy", "nll_loss"))


@check("argmax-axis", at="validation")
def argmax_over_samples(seen: Seen) -> Iterator[Evidence]:
    """The argmax of outputs of (N, classes) goes over the samples."""
    tables = [one.output.shape for one in _own_losses(seen) if len(one.output.shape) == 2]
    widths = {shape[1] for shape in tables} if any(a != b for a, b in tables) else set()
    judged = {one.output.memory for one in seen.losses_in("val")}  # and no table that a metric keeps
    others = {tuple(one.output.shape[2:]) for one in _own_losses(seen) if len(one.output.shape) > 2}
    for call in seen.calls_of("argmax", phase="val"):
        given = call.inputs[0] if call.inputs else None
        if given is None or len(given.shape) < 2:
            continue
        axis = call.options.get("dim", call.options.get("1", call.options.get("axis")))
        axis = axis % len(given.shape) if isinstance(axis, int) else None
        if (
            len(given.shape) == 2
            and given.shape[0] > 1
            and (
                (given.shape[1] in widths and axis == 0)
                or (axis is None and given.memory in judged and given.shape[1] in widths)
                or (axis is None and given.memory in judged and _is_square(given.shape, seen))
            )
        ):
            what = "has no axis" if axis is None else "goes over the samples"
            yield Evidence(
                f"argmax of outputs {given.shape} {what}, and classes are in axis 1", "argmax(dim=1)"
            )
        elif given.shape[2:] in others and given.shape[1] in _classes(seen) and axis != 1:
            yield Evidence(
                f"argmax of outputs {given.shape} goes over axis {axis}, and classes are in axis 1",
                "argmax(dim=1)",
            )


def _is_square(shape: tuple[int, ...], seen: Seen) -> bool:
    """Whether losses get such matrices too, of each sample with each."""
    tables = [one.output.shape for one in _own_losses(seen) if len(one.output.shape) == 2]
    return shape[0] == shape[1] and any(a == b for a, b in tables)


def _classes(seen: Seen) -> set[int]:
    return {one.output.shape[1] for one in _own_losses(seen) if len(one.output.shape) > 2}


def _has_own_end(module: nn.Module) -> bool:
    """Whether the user's class does something when a validation ends, as log what it has collected."""
    own = [one for one in type(module).__mro__ if not one.__module__.startswith("paceline")]
    return any("on_validation_end" in vars(one) for one in own)


_OF_THE_WHOLE = {"auroc", "auc", "auprc", "r2", "mcc", "kappa"}
"""Values that no sample has by itself."""


@check("batch-means", at="validation")
def means_of_values_of_the_whole(seen: Seen) -> Iterator[Evidence]:
    """A value that only all samples together have is logged for each batch, by a step and nothing else."""
    own = [type(one) for one in seen.trainer.callbacks if not type(one).__module__.startswith("paceline")]
    if own or len(seen.batches.get("val", ())) < 2 or _has_own_end(seen.module):
        return
    objects = {
        word
        for name, part in seen.module.named_modules()
        if hasattr(part, "compute") and hasattr(part, "reset")
        for word in words_of(f"{name} {type(part).__name__}")
    }
    for name in sorted(seen.logged.get("val", ())):
        words = set(words_of(name.rpartition("/")[2]))
        found = sorted(words & _OF_THE_WHOLE)
        if found and not objects:
            yield Evidence(
                f"{name} is the mean of {len(seen.batches['val'])} batches, and {found[0]} is no mean",
                "collect over the validation, as a torchmetrics object does, and log that",
            )


def _grown(seen: Seen) -> dict[str, list[float]]:
    """Counts that are larger after the first batch of the second validation than of the first."""
    return {
        name: sizes
        for name, sizes in seen.counts.items()
        if len(sizes) >= 2 and all(b > a > 0 for a, b in itertools.pairwise(sizes))
    }


@check("metric-not-reset", at="validation")
def metric_objects_that_go_on(seen: Seen) -> Iterator[Evidence]:
    """A metric object, or the two counts whose quotient a metric is, go on in each validation."""
    grown = _grown(seen)
    batches = len(seen.batches.get("val", ()))
    for name, sizes in grown.items():
        if name.endswith(UPDATES) and sizes[1] - sizes[0] == batches:
            yield Evidence(
                f"self.{name.removesuffix(UPDATES)} was not reset between two validations: it has "
                f"{sizes[1] - 1:.0f} batches of earlier ones",
                "log the object itself, or call its reset() when a validation starts",
            )
        elif name.endswith(TENSORS) and sizes[1] - sizes[0] == batches and _has_own_end(seen.module):
            yield Evidence(
                f"the list self.{name.removesuffix(TENSORS)} still has the tensors of earlier validations",
                "empty it when a validation starts",
            )
    if len(seen.totals) < 2 or not grown:
        return
    last, values = seen.totals[-1], seen.values[-1]
    for metric, value in values.items():
        for above in grown:
            below = next(
                (
                    n
                    for n in grown
                    if n != above and last.get(n) and abs(last[above] / last[n] - value) < 1e-6
                ),
                None,
            )
            if below and value > 0:
                yield Evidence(
                    f"{metric} is self.{above} / self.{below}, which go on from validation to validation",
                    "set both to 0 when a validation starts",
                )
                return
