"""Tensors that lie in safetensors files, as memory-mapped parts: nothing is read before it is used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...common.retries import retried


class Part(NamedTuple):
    """A part of a tensor.

    Args:
        place: Where it lies in the whole tensor; empty for the whole.
        values: A tensor over the file's memory map, or any other.
    """

    place: tuple[slice, ...]
    values: Tensor


Stored = Sequence[Part]
"""A tensor as the parts that a checkpoint of several ranks keeps it in; most have one part."""


def find_stored(files: Sequence[Path]) -> dict[str, Stored]:
    """The tensors of safetensors files, by name. Only the headers are read.

    Args:
        files: One or more; the parts of a tensor may be in several of them.

    Raises:
        OSError: for a file that cannot be read.

    Example:
        >>> find_stored([])
        {}
    """
    found: dict[str, list[Part]] = {}
    for file in files:
        for name, part in retried(partial(_parts_in, file)):
            found.setdefault(name, []).append(part)
    return dict(found)


def _parts_in(file: Path) -> list[tuple[str, Part]]:
    from safetensors import safe_open

    found = []
    with safe_open(file, framework="pt") as content:
        offsets: dict[str, Any] = json.loads((content.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
        for name in content.keys():  # noqa: SIM118
            values = content.get_tensor(name)
            start = offsets.get(name, {}).get("saved_offsets", [0] * values.ndim)
            place = tuple(slice(a, a + n) for a, n in zip(start, values.shape, strict=True))
            found.append((name, Part(place, values)))
    return found


def description(stored: Stored) -> Tensor:
    """A tensor on the meta device with the shape and dtype of the whole."""
    ends = [[where.stop for where in part.place] for part in stored]
    shape = [max(axis) for axis in zip(*ends, strict=True)]
    return torch.empty(shape, dtype=stored[0].values.dtype, device="meta")


def read(stored: Stored, into: Tensor) -> None:
    """Copy the whole tensor into one with its own memory, of any dtype and device."""
    with torch.no_grad():
        for part in stored:
            into[part.place].copy_(part.values)
