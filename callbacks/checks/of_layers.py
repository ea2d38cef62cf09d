"""Checks of what layers compute: dead and constant units, mixed rows and axes, dropout, batch norms."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from .attributes import is_trained
from .finding import Evidence, check
from .seen import FunctionCall, LayerFacts, LossCall, Seen

_DEAD, _FEWEST_UNITS, _FEWEST_ROWS = 0.95, 8, 16
_FULL_DROPOUT = 0.95
_TINY = 2


def sites(calls: Iterator[LossCall]) -> list[list[LossCall]]:
    """Calls of losses by where they are made: the same layer and place in the order of a step."""
    found: dict[tuple[str, str, int], list[LossCall]] = {}
    numbers: dict[tuple[str, str, int], int] = {}
    for call in calls:
        place = (call.function, call.layer, call.step)
        number = numbers[place] = numbers.get(place, -1) + 1
        found.setdefault((call.function, call.layer, number), []).append(call)
    return list(found.values())


def rows_of_batches(seen: Seen) -> set[int]:
    """The numbers of samples of the batches that were seen, where all tensors of a batch agree."""
    found = set()
    for batch in seen.batches.get("train", ()):
        lengths = {f.shape[0] for f in (*batch.inputs.values(), *batch.targets.values()) if f.shape}
        if len(lengths) == 1:
            found |= lengths
    return found


def _has_a_label_for_each_row(seen: Seen) -> bool:
    """Whether all losses compare one output for each sample with one target for it."""
    rows = rows_of_batches(seen)
    calls = list(seen.losses_in("train"))
    return bool(calls) and all(
        len(one.target.shape) <= 2
        and one.target.shape[:1] == one.output.shape[:1]
        and one.target.shape
        and one.target.shape[0] in rows
        and (len(one.target.shape) == 1 or one.target.shape[1] == 1)
        for one in calls
    )


@check("dead-units", at="steps")
def units_that_are_always_zero(seen: Seen) -> Iterator[Evidence]:
    """Nearly all units of a ReLU are 0 for all rows."""
    last = max(seen.watched, default=0)
    for name, facts in seen.units.items():
        if facts.count < _FEWEST_UNITS or facts.samples < 2 * _FEWEST_ROWS or facts.dead_now is None:
            continue
        dead = int(facts.dead.sum())
        now = int(facts.dead_now.sum()) if facts.step == last and last >= 10 else 0
        if facts.count in rows_of_batches(seen) and now < facts.count == dead:
            continue
        layer = name.partition("#")[0]
        where = (
            f"the ReLU {layer}"
            if layer and not name.partition("#")[2]
            else f"a ReLU of {layer or 'the step'}"
        )
        if seen.step >= 3 and dead >= _DEAD * facts.count:
            count = "all" if dead == facts.count else f"{dead} of"
            yield Evidence(
                f"{count} {facts.count} units of {where} were 0 for each of {facts.samples} rows",
                "check biases, initial weights and the sign of its inputs",
            )
        elif now == facts.count:
            yield Evidence(
                f"all {facts.count} units of {where} are 0 in step {facts.step}, and learn no more",
                "lower the learning rate, or warm it up",
            )


@check("constant-output", at="steps")
def outputs_equal_for_all_rows(seen: Seen) -> Iterator[Evidence]:
    """The loss gets the same output for each row, while targets differ."""
    if not any(batch.inputs for batch in seen.batches.get("train", ())):
        return
    for calls in sites(seen.losses_in("train")):
        steps = {call.step for call in calls}
        varied = [call for call in calls if len(call.output.shape) > 0 and call.output.shape[0] >= 4]
        if len(steps) < 3 or len(varied) < len(calls) or not calls[0].output.requires_grad:
            continue
        if all(c.output.rows_alike and not c.target.rows_alike and c.target.std > 0 for c in varied):
            yield Evidence(
                f"{calls[0].function} gets the same output for all rows of a batch, in {len(steps)} steps",
                "look where the inputs are lost: a softmax or norm over one number, a mask, zeros",
            )


@check("mixed-rows", at="steps")
def softmax_over_the_batch(seen: Seen) -> Iterator[Evidence]:
    """A softmax over axis 0, where that has the samples and each has one label."""
    rows = rows_of_batches(seen)
    if not _has_a_label_for_each_row(seen):
        return
    for call in seen.calls_of("softmax", "log_softmax"):
        shape = call.inputs[0].shape if call.inputs else ()
        axis = call.options.get("dim", call.options.get("1"))
        wide = len(shape) > 1 and shape[0] in rows and shape[0] > 1 and shape[0] not in shape[1:]
        if axis == 0 and wide and max(shape[1:]) > 1 and call.inputs[0].requires_grad:
            yield Evidence(
                f"a {call.function}{_of(call)} over axis 0, which has the {shape[0]} samples, mixes them",
                "take it over the last axis, or over that of classes or positions",
            )
            return


def _of(call: FunctionCall) -> str:
    return f" in {call.layer}" if call.layer else ""


@check("mixed-rows", at="steps")
def sequences_over_the_batch(seen: Seen) -> Iterator[Evidence]:
    """A layer of sequences takes axis 0 as time, and gets the samples there."""
    rows = rows_of_batches(seen)
    if not _has_a_label_for_each_row(seen):
        return
    for name, facts in seen.layers.items():
        part = _part(seen, name)
        first = getattr(part, "batch_first", None)
        if isinstance(part, nn.TransformerEncoderLayer):
            first = part.self_attn.batch_first
        shape = facts.first_input.shape if facts.first_input else ()
        if (
            first is False
            and len(shape) == 3
            and shape[0] in rows
            and shape[1] not in rows
            and shape[1] > 1
        ):
            yield Evidence(
                f"{name} ({type(part).__name__}) takes axis 0, the {shape[0]} samples, as time",
                "make it with batch_first=True",
            )


@check("tiny-batch-norm", at="steps")
def batch_norms_of_single_samples(seen: Seen) -> Iterator[Evidence]:
    """A batch norm that trains on one sample, or on two numbers."""
    for name, facts in _batch_norms(seen):
        if facts.values_per_channel <= _TINY or facts.rows == 1:
            tiny = facts.values_per_channel <= _TINY
            what = f"{facts.values_per_channel} values per channel" if tiny else "single samples"
            yield Evidence(
                f"{name} is a batch norm, and trains on {what}",
                "use a larger batch_size, or nn.GroupNorm",
            )


def _batch_norms(seen: Seen) -> Iterator[tuple[str, LayerFacts]]:
    if seen.step < 3:
        return
    for name, facts in seen.layers.items():
        if facts.values_per_channel and facts.calls.get("train", 0) >= 2:
            yield name, facts


@check("full-dropout", at="steps")
def dropout_of_nearly_everything(seen: Seen) -> Iterator[Evidence]:
    """A dropout that keeps next to nothing."""
    for call in seen.calls_of("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"):
        rate = _rate(call)
        if rate >= _FULL_DROPOUT and _is_active(call):
            where = call.layer or "the step"
            yield Evidence(
                f"{where} drops {rate:.0%} of its inputs in training",
                "p is the part that is dropped, not the part that is kept",
            )
            return


def _rate(call: FunctionCall) -> float:
    rate = call.options.get("p", call.options.get("1", 0.5))
    return float(rate) if isinstance(rate, (int, float)) else 0.0


def _is_active(call: FunctionCall) -> bool:
    return bool(call.options.get("training", call.options.get("2", True)))


@check("dropout-in-evaluation", at="validation")
def dropout_that_validation_applies(seen: Seen) -> Iterator[Evidence]:
    """F.dropout without ``training=`` is active in eval mode."""
    for call in seen.calls_of(
        "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", phase="val"
    ):
        line = call.options.get("line", "")
        if line and not _SAID.search(line) and not call.training and _rate(call) > 0:
            yield Evidence(
                f"F.{call.function}{_of(call)} drops in validation too: training=True is its default",
                f"give it training=self.training, or use {_LAYERS.get(call.function, 'nn.Dropout')}",
            )
            return
    for call in seen.calls_of("scaled_dot_product_attention", phase="val"):
        rate = call.options.get("dropout_p", call.options.get("4", 0.0))
        if isinstance(rate, float) and rate > 0 and not call.training:
            yield Evidence(
                f"scaled_dot_product_attention(dropout_p={rate}){_of(call)} drops in validation too",
                "give it dropout_p=p if self.training else 0.0",
            )
            return


_SAID = re.compile(r"\btrain|\bTrue\b")
"""Marks of a call that says itself when it drops."""
_LAYERS = {"dropout2d": "nn.Dropout2d", "dropout3d": "nn.Dropout3d", "alpha_dropout": "nn.AlphaDropout"}


@check("missing-activation", at="steps")
def wider_layer_between_two(seen: Seen) -> Iterator[Evidence]:
    """A linear layer with more outputs than the inputs and outputs of both is wide for nothing."""
    pairs = dict(_linear_pairs(seen))
    for name, before in pairs.items():
        first, two = _part(seen, before), _part(seen, name)
        if not isinstance(first, nn.Linear) or not isinstance(two, nn.Linear):
            continue
        widest, start = first.out_features, before
        for _ in pairs:  # back to the first of them
            start = pairs.get(start, start)
            earlier = _part(seen, start)
            first = earlier if isinstance(earlier, nn.Linear) else first
            widest = max(widest, first.out_features)
        if widest > max(first.in_features, two.out_features):
            yield Evidence(
                f"{before} and {name} have nothing between them: together they are one linear layer",
                "put an activation between them",
            )


def _linear_pairs(seen: Seen) -> Iterator[tuple[str, str]]:
    for name, facts in seen.layers.items():
        part = _part(seen, name)
        if not isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d)) or not is_trained(part):
            continue
        for before in sorted(facts.fed_by):
            while isinstance(_part(seen, before), nn.Dropout):
                before = min(seen.layers[before].fed_by, default="")
            other = _part(seen, before) if before else None
            if other is not None and type(other) is type(part) and other is not part and is_trained(other):
                yield name, before


@check("scrambled-axes", at="steps")
def reshape_where_axes_were_to_be_swapped(seen: Seen) -> Iterator[Evidence]:
    """A reshape gives the sizes in another order, and with them the values."""
    for call in seen.calls_of("view", "reshape"):
        given, result = call.inputs[0], call.result
        if result is None or "float" not in given.dtype or not (given.requires_grad or given.from_batch):
            continue
        old, new = ([n for n in shape if n != 1] for shape in (given.shape, result.shape))
        if len(old) < 3 and len(new) < 3 and (old[0] % old[-1] == 0 or old[-1] % old[0] == 0):
            continue  # it may split one axis and merge the other
        yield Evidence(
            f"{call.function} of {given.shape} to {result.shape}{_of(call)} mixes the axes up",
            "swap axes by transpose or permute, before any reshape",
        )
        return


def _part(seen: Seen, name: str) -> nn.Module | None:
    try:
        return seen.module.get_submodule(name)
    except AttributeError:
        return None
