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
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..rng import Generators

_WORDS = 624
_BYTES = 4 * (_WORDS + 1)
_HALF = 16  # a flag, and a number of 8 bytes behind it


class Snapshot(NamedTuple):
    """What ``restore`` puts back."""

    torch: Tensor
    python: Any
    numpy: Any


def _write(address: int, content: bytes) -> None:
    """In one piece: ``ctypes.memmove`` would let other threads run meanwhile."""
    (ctypes.c_char * len(content)).from_address(address).raw = content


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
        _write(self.address, words)


class _Numpy:
    """numpy's global generator: the words, then the number of those used.

    Normal numbers are drawn in pairs, and the second of one may be waiting (``has_gauss``). It lies in the
    object that has the generator; where, is found by putting a number there that is nowhere else.
    """

    def __init__(self) -> None:
        self.owner: Any = None
        self.words = 0  # an address; 0: not known

    @cached_property
    def _half(self) -> int:
        return _find_half(getattr(np.random.get_state, "__self__", None))

    def find(self) -> bool:
        """Whether the state of the generator that is in use now can be seen."""
        owner = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if owner is not self.owner:
            self.owner, self.words = owner, 0
            if type(owner) is np.random.MT19937:
                address = owner.ctypes.state_address
                told: Any = np.random.get_state()
                words = struct.pack("=624Ii", *told[1].tolist(), told[2])
                if self._half and ctypes.string_at(address, _BYTES) == words:
                    self.words = address
        return bool(self.words)

    def get(self) -> Any:
        if not self.find():
            return np.random.get_state()
        return ctypes.string_at(self.words, _BYTES), ctypes.string_at(self._half, _HALF)

    def set(self, state: Any) -> None:
        if not self.find():
            np.random.set_state(state)
            return
        _write(self.words, state[0])
        _write(self._half, state[1])


def _find_half(generator: Any) -> int:
    """Where a generator of numpy keeps whether a second half is waiting, and the half; 0: not known."""
    kept: Any = np.random.get_state()
    number = 0.123456789012345
    try:
        memory = {}
        for waits in (1, 0):
            np.random.set_state((*kept[:3], waits, number))
            memory[waits] = ctypes.string_at(id(generator), type(generator).__basicsize__)
    finally:
        np.random.set_state(kept)
    place = memory[1].find(struct.pack("=d", number)) - 8
    if place < 0 or any(struct.unpack_from("=i", memory[waits], place)[0] != waits for waits in (1, 0)):
        return 0
    return id(generator) + place


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
    if len(first.numpy) == len(second.numpy) == 2:
        same = first.numpy == second.numpy
    else:
        (_, words, *rest), (_, later, *others) = first.numpy, second.numpy
        same = rest == others and np.array_equal(words, later)
    return not torch.equal(first.torch, second.torch), first.python != second.python, not same


def seed_for_sample(seed: int, which: Generators = (True, True, True)) -> None:
    """Seed the CPU generators only: what a dataset draws from, in 6 us instead of 70."""
    if which[0]:
        torch.default_generator.manual_seed(seed)
    if which[1]:
        random.seed(seed)
    if which[2]:
        np.random.seed(seed & 0xFFFFFFFF)
