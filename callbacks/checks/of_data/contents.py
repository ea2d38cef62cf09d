"""Checks of what inputs and targets contain: scale, constants, leaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from ..finding import Evidence, check
from ..layer_watch import ALL_NORMS, CONVOLUTIONS
from ..seen import Seen, TensorFacts

_WEIGHTED = (nn.Linear, *CONVOLUTIONS, nn.RNNBase)


class Given(NamedTuple):
    """What the first layer with weights gets, beside the input of the batch that it may be made of."""

    layer: str
    input: TensorFacts
    batch: TensorFacts
    place: str


def _is_float(facts: TensorFacts) -> bool:
    return facts.dtype.startswith(("float", "bfloat"))


def _given(seen: Seen) -> Iterator[Given]:
    """Layers with weights beside the inputs of the first batch; none after a norm of the inputs."""
    batches = seen.batches.get("train", [])
    parts = dict(seen.module.named_modules())
    called = sorted(
        ((facts.order, name) for name, facts in seen.layers.items() if facts.first_input is not None),
    )
    known = [(name, parts[name]) for _, name in called if name in parts]
    if not batches or not known or any(isinstance(part, ALL_NORMS) for _, part in known[:2]):
        return
    for place, one in batches[0].inputs.items():
        for name, part in known:
            given = seen.layers[name].first_input
            if isinstance(part, _WEIGHTED) and given is not None and _is_float(given):
                yield Given(name, given, one, place)


def _is_near(a: float, b: float, part: float) -> bool:
    return abs(a - b) <= part * max(abs(a), abs(b))


@check("unscaled-inputs", at="steps")
def bytes_as_floats(seen: Seen) -> Iterator[Evidence]:
    """Images of whole numbers up to 255 reach the first weights as they are."""
    for one in _given(seen):
        batch, given = one.batch, one.input
        image = len(batch.shape) >= 3 and batch.whole and batch.minimum >= 0 and 100 < batch.maximum <= 255
        same = _is_near(given.maximum, batch.maximum, 0.04) and given.minimum > -0.05 * batch.maximum
        if image and same and batch.std > 20 and _is_near(given.std, batch.std, 0.25):
            yield Evidence(
                f"{one.layer} gets images with values from {given.minimum:.0f} to {given.maximum:.0f}",
                "divide them by 255, and subtract their mean",
            )
            return


@check("unscaled-inputs", at="steps")
def large_numbers(seen: Seen) -> Iterator[Evidence]:
    """Inputs of thousands reach the first weights as they are."""
    for one in _given(seen):
        batch, given = one.batch, one.input
        large = max(abs(batch.minimum), abs(batch.maximum))
        same = _is_near(given.maximum, batch.maximum, 0.01) and _is_near(given.std, batch.std, 0.05)
        if _is_float(batch) and large >= 1000 and batch.std > 50 and same:
            yield Evidence(
                f"{one.layer} gets inputs from {given.minimum:.3g} to {given.maximum:.3g}, as they are",
                "scale each column to a mean of about 0 and a deviation of about 1",
            )
            return


@check("normalised-twice", at="steps")
def divided_again(seen: Seen) -> Iterator[Evidence]:
    """Images of about 1 are divided by 255, or standardised, again before the first weights."""
    for one in _given(seen):
        batch, given = one.batch, one.input
        if len(batch.shape) < 3 or not _is_float(batch) or batch.std < 0.05 or not given.std:
            continue
        factor = batch.std / given.std
        if (
            batch.maximum <= 10
            and 250 < factor < 260
            and _is_near(batch.maximum / factor, given.maximum, 0.02)
        ):
            yield Evidence(
                f"{one.layer} gets images of at most {given.maximum:.2g}: values up to {batch.maximum:.2g} "
                "were divided by 255 again",
                "divide by 255 once",
            )
            return
        shift = given.mean - batch.mean / factor
        affine = all(
            abs(a / factor + shift - b) < 0.35 * given.std  # noise may have come in between
            for a, b in ((batch.minimum, given.minimum), (batch.maximum, given.maximum))
        )
        standard = abs(batch.mean) < 0.3 and 0.7 < batch.std < 1.4
        if standard and affine and 2.5 < 1 / factor < 8 and 0.2 < -shift * factor < 0.8:
            yield Evidence(
                f"{one.layer} gets a mean of {given.mean:.1f} and a deviation of {given.std:.1f}: images "
                "that are standardised are standardised again",
                "subtract the mean and divide by the deviation once",
            )
            return


def _first_layer_is_constant(seen: Seen) -> bool:
    given = [(one.order, one.first_input) for one in seen.layers.values() if one.first_input is not None]
    first = min(given, key=lambda one: one[0], default=(0, None))[1]
    return first is not None and first.minimum == first.maximum and max(first.shape, default=0) > 1


@check("all-padding", at="steps")
def inputs_of_one_value(seen: Seen) -> Iterator[Evidence]:
    """All inputs of an epoch are one value, and the first layer gets it."""
    batches = [one for one in seen.batches.get("train", []) if one.inputs]
    if len(batches) < 3 or not _first_layer_is_constant(seen):
        return
    places = [place for place, one in batches[0].inputs.items() if len(one.shape) > 1]
    values = {
        value
        for one in batches
        for place in places
        if place in one.inputs
        for value in (one.inputs[place].minimum, one.inputs[place].maximum)
    }
    rows = sum(len(one.rows) for one in batches)
    if places and len(values) == 1 and rows >= 16:
        yield Evidence(
            f"all inputs of the first {len(batches)} batches are {values.pop():g}",
            "look at how samples are read, cut and padded",
        )
