"""The CPU's random generators by their memory, at every batch: their own functions take 100 us together.

Both ``random`` and numpy are Mersenne twisters: 624 words and how many of them are used. numpy documents
where it keeps them (``BitGenerator.ctypes.state_address``); CPython has them behind the object's head. What
is found there is compared with what ``getstate`` and ``get_state`` say before it is trusted; where it is
anything else, these are called.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .rng import Generators

_WORDS = 624
_BYTES = 4 * (_WORDS + 1)


class Snapshot(NamedTuple):
    """What ``restore`` puts back."""

    torch: Tensor
    python: Any
    numpy: Any


class _Python:
    """``random``'s own generator: the number of used words, then the words."""

    def __init__(self) -> None:
        self.owner = getattr(random.getstate, "__self__", None)
        self.address = id(self.owner) + object.__basicsize__
        there = getattr(type(self.owner), "__basicsize__", 0) >= object.__basicsize__ + _BYTES
        _, words, _ = random.getstate()
        found = struct.unpack("=i624I", ctypes.string_at(self.address, _BYTES)) if there else ()
        self.seen = found == (words[_WORDS], *words[:_WORDS])

    def get(self) -> Any:
        if not self.seen:
            return random.getstate()
        return ctypes.string_at(self.address, _BYTES), self.owner.gauss_next  # type: ignore[union-attr]

    def set(self, state: Any) -> None:
        if not self.seen:
            random.setstate(state)
            return
        words, self.owner.gauss_next = state  # type: ignore[union-attr]
        ctypes.memmove(self.address, words, _BYTES)


class _Numpy:
    """numpy's global generator: the words, then the number of those used.

    The second half of a pair of normal numbers lies elsewhere. It can only be waiting where words have
    moved since it was known not to be.
    """

    def __init__(self) -> None:
        self.owner: Any = None
        self.address: int | None = None
        self.none_waits: bytes | None = None

    def find(self) -> int | None:
        """Where the words are of the generator that is in use now; None: not known."""
        owner = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if owner is not self.owner:
            self.owner, self.address, self.none_waits = owner, None, None
            if type(owner) is np.random.MT19937:
                address = owner.ctypes.state_address
                told: Any = np.random.get_state()
                words = struct.pack("=624Ii", *told[1].tolist(), told[2])
                self.address = address if ctypes.string_at(address, _BYTES) == words else None
        return self.address

    def get(self) -> Any:
        address = self.find()
        if address is not None:
            words = ctypes.string_at(address, _BYTES)
            if words == self.none_waits:
                return words
        state: Any = np.random.get_state()
        if address is None or state[3]:
            return state
        self.none_waits = words
        return words

    def set(self, state: Any) -> None:
        address = self.find()
        if not isinstance(state, bytes) or address is None:
            np.random.set_state(state)
            self.none_waits = None
            return
        np.random.seed(0)  # forgets a second half
        ctypes.memmove(address, state, _BYTES)
        self.none_waits = state

    def seed(self, number: int) -> None:
        np.random.seed(number)
        address = self.find()
        if address is not None:
            self.none_waits = ctypes.string_at(address, _BYTES)


_python, _numpy = _Python(), _Numpy()


def snapshot() -> Snapshot:
    """The state of torch's CPU generator, ``random`` and numpy, to compare and to put back."""
    return Snapshot(torch.default_generator.get_state(), _python.get(), _numpy.get())


def restore(state: Snapshot) -> None:
    """Put back what ``snapshot`` gave."""
    torch.default_generator.set_state(state.torch)
    _python.set(state.python)
    _numpy.set(state.numpy)


def moved(first: Snapshot, second: Snapshot) -> Generators:
    """Which were drawn from between two snapshots."""
    numpy, later = first.numpy, second.numpy
    if not isinstance(numpy, bytes) and not isinstance(later, bytes):
        same = numpy[2:] == later[2:] and np.array_equal(numpy[1], later[1])
    else:
        same = type(numpy) is type(later) and numpy == later
    return not torch.equal(first.torch, second.torch), first.python != second.python, not same


def seed_for_sample(seed: int, which: Generators = (True, True, True)) -> None:
    """Seed the CPU generators only: what a dataset draws from, in 6 us instead of 70."""
    if which[0]:
        torch.default_generator.manual_seed(seed)
    if which[1]:
        random.seed(seed)
    if which[2]:
        _numpy.seed(seed & 0xFFFFFFFF)
