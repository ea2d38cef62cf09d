"""Arrays as short text in a page, which ``data.js`` reads again."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from ...callbacks.loggers.series import Array, drawable

EXACT = 32  # bits of a value as it is
_WIDE = 1000.0  # between the ends of a series: above, codes are spread over its logarithm
_SPIKE = 30.0  # how far beyond the middle 98 % its ends are: above, codes are dense in the middle
_INT32 = 2**31 - 1


def encode_position(values: Array, bits: int) -> dict[str, Any]:
    """A column of positions: whole numbers exactly, others so finely that neighbours stay apart.

    Args:
        values: Ascending, as a rule.
        bits: Of the values beside them; fewer make positions coarser.
    """
    if not len(values) or not np.isfinite(values).all():
        return encode_values(values, max(bits, 16), even=True)
    low, unit = float(values[0]), 1.0
    if (values != np.floor(values)).any():
        steps = 2**24 if bits >= EXACT else max(2**16, 4 * len(values))
        unit = float(values.max() - values.min()) / steps or 1.0
    counts = np.round((values - low) / unit)
    differences = np.diff(counts, prepend=counts[0])
    if np.abs(differences).max() > _INT32:
        return encode_values(values, EXACT)
    text = _packed(differences.astype("<i4"))
    return {"form": "count", "n": len(values), "low": low, "unit": unit, "data": text}


def encode_values(values: Array, bits: int, even: bool = False) -> dict[str, Any]:
    """A series: as float32, or as codes of fewer bits.

    A code is a place on a scale between the lowest and the highest value: even, logarithmic, or dense
    around the median, by what fits the values. Code 0 is NaN, which infinities become.

    Args:
        values: At least one.
        bits: ``EXACT``, or those of a code: 2 to 16.
        even: Whether the scale is even in any case.
    """
    values = drawable(values)
    if bits >= EXACT:
        return {"form": "float", "n": len(values), "data": _packed(values.astype("<f4"))}
    scale = {"scale": "even"} if even else _scale_of(values)
    scaled = _onto(values, scale)
    finite = scaled[np.isfinite(scaled)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    steps = 2**bits - 2
    unit = (high - low) / steps
    codes = np.where(np.isfinite(scaled), np.round((scaled - low) / unit) + 1 if unit else 1.0, 0.0)
    whole = np.nan_to_num(codes).astype("<u2")
    plain, coded = _packed(whole), _packed(np.diff(whole, prepend=whole[:1] * 0))
    delta = len(coded) < len(plain)
    found = {"form": "code", "n": len(values), "low": low, "unit": unit, "delta": delta} | scale
    return found | {"data": coded if delta else plain}


def decode(found: dict[str, Any]) -> Array:
    """What ``data.js`` makes of an encoded column."""
    raw = np.frombuffer(zlib.decompress(base64.b64decode(found["data"])), dtype=np.uint8)
    width = {"count": 4, "float": 4, "code": 2}[found["form"]]
    joined = np.ascontiguousarray(raw.reshape(width, -1).T).reshape(-1)
    if found["form"] == "float":
        return joined.view("<f4").astype(np.float64)
    if found["form"] == "count":
        counted: Array = found["low"] + found["unit"] * np.cumsum(joined.view("<i4"), dtype=np.float64)
        return counted
    codes = joined.view("<u2")
    codes = np.cumsum(codes, dtype=np.uint16) if found["delta"] else codes
    scaled: Array = np.where(codes == 0, np.nan, found["low"] + (codes - 1.0) * found["unit"])
    if found["scale"] == "log":
        scaled = np.exp(scaled)
    elif found["scale"] == "asinh":
        scaled = found["centre"] + found["spread"] * np.sinh(scaled)
    return scaled


def _packed(values: Array) -> str:
    """Bytes of equal weight side by side, which deflate finds more in."""
    planes = values.view(np.uint8).reshape(len(values), values.itemsize).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def _scale_of(values: Array) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    if len(finite) < 3:
        return {"scale": "even"}
    low, below, centre, above, high = np.quantile(finite, (0, 0.01, 0.5, 0.99, 1)).tolist()
    if low > 0 and high / low > _WIDE:
        return {"scale": "log"}
    if above > below and high - low > _SPIKE * (above - below):
        return {"scale": "asinh", "centre": centre, "spread": above - below}
    return {"scale": "even"}


def _onto(values: Array, scale: dict[str, Any]) -> Array:
    found = values
    if scale["scale"] == "log":
        found = np.log(values)
    elif scale["scale"] == "asinh":
        found = np.arcsinh((values - scale["centre"]) / scale["spread"])
    return found


def reduced(values: Array, parts: int) -> Array:
    """A series as its lowest and highest value in each of ``parts`` equal runs of points, in their order.

    Example:
        >>> reduced(np.array([1.0, 5.0, 2.0, 0.0, 3.0, 3.5]), 2)
        array([1. , 5. , 0. , 3.5])
    """
    starts = part_starts(len(values), parts)
    lowest = np.fmin.reduceat(values, starts)
    highest = np.fmax.reduceat(values, starts)
    rising = np.empty(len(starts), dtype=bool)
    for place, (begin, end) in enumerate(zip(starts, [*starts[1:], len(values)], strict=True)):
        part = values[begin:end]
        known = np.isfinite(part).any()
        rising[place] = not known or np.nanargmin(part) <= np.nanargmax(part)
    first, second = np.where(rising, lowest, highest), np.where(rising, highest, lowest)
    return np.stack([first, second], axis=1).reshape(-1)


def reduced_position(values: Array, parts: int) -> Array:
    """Two positions of each part: its first one and its middle one."""
    starts = part_starts(len(values), parts)
    ends = np.append(starts[1:], len(values))
    return np.stack([values[starts], values[(starts + ends) // 2]], axis=1).reshape(-1)


def part_starts(length: int, parts: int) -> Array:
    """Where each of the parts begins."""
    return np.arange(parts) * length // parts
