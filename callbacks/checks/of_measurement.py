"""Checks of measurement: metrics, monitors, and what validation does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from torch import nn

from .attributes import TENSORS, UPDATES
from .finding import Evidence, check
from .layer_watch import DROPOUTS, NORMS
from .seen import FunctionCall, LossCall, Seen

_LOW = {"loss", "losses", "error", "perplexity", "ppl", "mse", "rmse", "mae", "nll", "bpc", "wer", "cer"}
_HIGH = {"accuracy", "acc", "f1", "auc", "auroc", "iou", "miou", "bleu", "r2", "psnr", "ssim", "precision"}
_HIGH |= {"recall", "map", "ndcg", "dice", "top1", "top5", "rouge", "correlation", "pearson", "spearman"}
_TURNED = {"neg", "negative", "minus", "inverse", "inv", "one", "1"}


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


@check("wrong-split-metric", at="steps")
def validation_name_in_training(seen: Seen) -> Iterator[Evidence]:
    """A training step logs a value under the name of validation."""
    for name in sorted(seen.logged.get("train", ())):
        phase, _, rest = name.partition("/")
        if phase != "train" and name not in seen.logged_first:
            continue  # a callback may have measured it
        first = _words(rest if phase == "train" else phase)[:1]
        if first and first[0] in ("val", "validation", "test") and rest:
            yield Evidence(
                f"a training step logs {rest if phase == 'train' else name}, which is named as of "
                f"{'test' if first[0] == 'test' else 'validation'}",
                'log it in validation_step, or without the prefix: "loss" is train/loss and val/loss',
            )


@check("wrong-split-metric", at="validation")
def training_name_in_validation(seen: Seen) -> Iterator[Evidence]:
    """A validation step logs a value under the name of training."""
    loaders = [name for name in seen.data if "train" in name.lower() and name != "train"]
    for name in sorted(seen.logged.get("val", ())):
        phase, _, rest = name.partition("/")
        first = _words(rest)[:1]
        compared = set(_words(rest)) & {"gap", "difference", "diff", "ratio", "vs", "minus", "val"}
        if phase == "val" and first and first[0] in ("train", "training") and not (loaders or compared):
            yield Evidence(
                f"validation logs {rest}, which is named as of training",
                'log it without the prefix: "loss" is train/loss and val/loss',
            )


@check("monitor-direction", at="start")
def monitor_goes_the_wrong_way(seen: Seen) -> Iterator[Evidence]:
    """The mode of a monitor is the reverse of what the name of its value says."""
    for who, name, mode in seen.monitors:
        words = set(_words(name.rpartition("/")[2]))
        low, high = words & _LOW, words & _HIGH
        if words & _TURNED or ("log" in words and "likelihood" in words):
            continue
        if (mode == "max" and low and not high) or (mode == "min" and high and not low):
            yield Evidence(
                f"{who} takes a {'high' if mode == 'max' else 'low'} {name} for better (mode={mode!r})",
                f"mode={'min' if mode == 'max' else 'max'!r}",
            )


@check("monitor-direction", at="start", on_request=True)
def loss_that_is_a_score(seen: Seen) -> Iterator[Evidence]:
    """A value is called a loss and named as a score, and the lowest is taken for the best."""
    for who, name, mode in seen.monitors:
        words = set(_words(name.rpartition("/")[2]))
        if mode == "min" and words & _HIGH and "loss" in words:
            yield Evidence(
                f"{who} takes a low {name} for better, but a high {sorted(words & _HIGH)[0]} is",
                'mode="max", unless it is 1 minus that',
            )


def _depends_on_mode(part: nn.Module) -> bool:
    return isinstance(part, (*DROPOUTS, *NORMS)) and getattr(part, "p", 1.0) > 0


@check("validation-mode", at="validation")
def validation_in_training_mode(seen: Seen) -> Iterator[Evidence]:
    """Parts of the module are in training mode when validation steps end."""
    inside = {name for name, facts in seen.layers.items() if facts.modes.get("val") == {True}}
    parts = dict(seen.module.named_modules())
    above = [name for name in inside if name in parts and not _depends_on_mode(parts[name])]
    moving = [
        name
        for name in sorted(inside)
        if name in parts and _depends_on_mode(parts[name]) and any(_is_above(one, name) for one in above)
    ]
    if moving:
        kind = type(parts[moving[0]]).__name__
        yield Evidence(
            f"validation runs in training mode: {len(moving)} layers are, such as {moving[0]} ({kind})",
            "leave out the call of train() that sets it, or pass the mode on: super().train(mode)",
        )


_CARRIED = {"hidden", "state", "states", "cache", "cached", "memory", "carry", "last", "previous", "prev"}
"""Words of buffers that carry something from batch to batch, in validation as well."""


def _is_above(one: str, name: str) -> bool:
    return not one or name.startswith(f"{one}.")


@check("validation-trains", at="validation")
def validation_updates_weights(seen: Seen) -> Iterator[Evidence]:
    """An optimizer that has weights of the module steps in a validation."""
    own = {id(one.parameter) for one in seen.parameters.values()}
    steps = [
        one
        for one in seen.updates
        if one.phase == "val" and any(id(p) in own for g in one.optimizer.param_groups for p in g["params"])
    ]
    if steps:
        yield Evidence(
            f"an optimizer steps in validation, {len(steps)} times so far",
            "take backward and step out of validation_step",
        )


@check("validation-trains", at="validation")
def validation_moves_statistics(seen: Seen) -> Iterator[Evidence]:
    """Buffers that training steps change are changed by validation steps too."""
    both = seen.changed_buffers.get("train", set()) & seen.changed_buffers.get("val", set())
    parts = dict(seen.module.named_modules())
    both = {
        name
        for name in both
        if not hasattr(parts.get(name.rpartition(".")[0]), "compute") and not set(_words(name)) & _CARRIED
    }
    if both:
        yield Evidence(
            f"validation changes {sorted(both)[0]}, which training steps change too",
            "change it only where self.training is True",
        )


@check("selected-on-test", at="test")
def test_data_is_validation_data(seen: Seen) -> Iterator[Evidence]:
    """The samples of the test are those by which checkpoints, rates or the end of training were chosen."""
    watched = [who for who, name, _ in seen.monitors if name.startswith("val/")]
    held_out = {row for one in seen.batches.get("val", ()) for row in one.rows}
    tested = [row for one in seen.batches.get("test", ()) for row in one.rows]
    same = sum(row in held_out for row in tested)
    if watched and len(tested) >= 8 and len(set(tested)) > len(tested) / 2 and same >= 0.8 * len(tested):
        yield Evidence(
            f"{same} of {len(tested)} samples of the test are those of validation, which {watched[0]} uses",
            "keep samples for the test that nothing is chosen by",
        )


def _calls(seen: Seen, *functions: str) -> Iterator[FunctionCall]:
    for phase in ("val", "train"):
        yield from seen.calls_of(*functions, phase=phase)  # type: ignore[arg-type]


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
        if given.whole or 0 <= given.minimum <= given.maximum <= 1:
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
                (given.shape[1] in widths and axis != 1) or (axis is None and _is_square(given.shape, seen))
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


@check("argmax-axis", at="validation", on_request=True)
def argmax_without_an_axis(seen: Seen) -> Iterator[Evidence]:
    """An argmax in validation gives one number for a whole batch, or one for each column."""
    for call in seen.calls_of("argmax", phase="val"):
        given = call.inputs[0] if call.inputs else None
        if given is None or len(given.shape) < 2 or given.shape[0] < 2:
            continue
        axis = call.options.get("dim", call.options.get("1", call.options.get("axis")))
        if axis is None or axis == 0 or (axis == 1 and len(given.shape) == 3):
            yield Evidence(
                f"argmax of outputs {given.shape} with dim={axis}", "give it the axis of classes"
            )


_NO_MEANS = {
    **dict.fromkeys(("f1", "fscore", "precision", "recall", "dice", "iou", "miou", "jaccard"), "ratio"),
    **dict.fromkeys(("auc", "auroc", "auprc", "map", "correlation", "pearson", "spearman"), "ranking"),
    **dict.fromkeys(("rmse", "perplexity", "ppl", "r2", "psnr", "bleu", "mcc", "kappa"), "function"),
}


def _has_own_end(module: nn.Module) -> bool:
    """Whether the user's class does something when a validation ends, as log what it has collected."""
    own = [one for one in type(module).__mro__ if not one.__module__.startswith("paceline")]
    return any("on_validation_end" in vars(one) for one in own)


@check("batch-means", at="validation", on_request=True)
def means_of_batches(seen: Seen) -> Iterator[Evidence]:
    """A value whose mean over batches is not that of all samples is logged in validation steps."""
    if len(seen.batches.get("val", ())) < 2 or _has_own_end(seen.module):
        return
    objects = {
        word
        for name, part in seen.module.named_modules()
        if hasattr(part, "compute") and hasattr(part, "reset")
        for word in _words(f"{name} {type(part).__name__}")
    }
    for name in sorted(seen.logged.get("val", ())):
        words = set(_words(name.rpartition("/")[2]))
        found = sorted(words & _NO_MEANS.keys())
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


@check("metric-not-reset", at="validation", on_request=True)
def counts_that_grow(seen: Seen) -> Iterator[Evidence]:
    """A number or list of the module grows in each validation, and never begins anew."""
    for name, sizes in _grown(seen).items():
        yield Evidence(
            f"self.{name} has {sizes[0]:g} after the first batch of a validation and {sizes[1]:g} after "
            "that of the next",
            "set it back when a validation starts",
        )
