"""Random generators: seeding all of them, and putting them back."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Never

import numpy as np
import torch

from ..common.argument_checks import SEED, SWITCH, check_arguments, refuse_unknown

# For each generator of the CPU, whether it is meant: torch's, ``random``'s, numpy's.
Generators = tuple[bool, bool, bool]
NONE: Generators = (False, False, False)
# The states of the same three.
CPUState = tuple[Any, Any, Any]
_last_given: list[int] = []
"""What ``seed_everything`` was called with last, in this process."""


def derive(*parts: int) -> int:
    """A 63-bit number that depends on all of ``parts`` and on nothing else."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def deriver(*parts: int) -> Callable[[int], int]:
    """``derive`` of ``parts`` and one more number, at half the cost."""
    begun = hashlib.blake2b(",".join(map(str, parts)).encode() + b",", digest_size=8).copy
    number_of = int.from_bytes

    def of(number: int) -> int:
        digest = begun()
        digest.update(b"%d" % number)
        return number_of(digest.digest(), "little") >> 1

    return of


def order_seed(seed: int, epoch: int) -> int:
    """The seed under which an epoch's sample order is drawn.

    A hand-written loop gets the same order: ``seed_everything(order_seed(seed, epoch))``, then
    ``for batch in loader``. A generator that the loader has takes ``manual_seed`` of the same number.

    Args:
        seed: The run's ``Trainer(seed=...)``.
        epoch: The epoch, from 0.

    Returns:
        A whole number from 0 to 2**63 - 1.

    Example:
        >>> seed = seed_everything(order_seed(0, epoch=3))
        >>> batches = list(train_loader)  # as in epoch 3 of Trainer(seed=0)
    """
    return derive(seed, epoch)


def seed_everything(seed: int, workers: bool = True, **unknown: Never) -> int:
    """Seed torch (all devices), ``random`` and numpy; returns ``seed``.

    It is also the seed of each ``Trainer`` that is made afterwards without a seed.

    Args:
        seed: Any whole number from 0 to 2**64 - 1; numpy takes its lower 32 bits, a ``Trainer`` 63.
        workers: Taken as other trainers have it, and without effect: samples that the workers of loaders
            read are always seeded by their position in the data.
        **unknown: No others are taken; the error says why none is needed.

    Returns:
        ``seed``.

    Example:
        >>> seed_everything(0)
        0
        >>> module = Net()  # the same initial weights each time
    """
    refuse_unknown("seed_everything", unknown, ["seed", "workers"])
    check_arguments("seed_everything", seed=(seed, SEED), workers=(workers, SWITCH))
    _last_given[:] = [seed]
    seed_generators(seed)
    return seed


def default_seed() -> int:
    """The seed of a ``Trainer`` that is given none: that of the last ``seed_everything``, else 0."""
    return _last_given[0] % 2**63 if _last_given else 0


def seed_generators(seed: int) -> None:
    """``seed_everything`` of a run itself, which is no choice of its user."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def seed_for_sample(seed: int, which: Generators = (True, True, True)) -> None:
    """Seed the CPU generators only: a dataset draws from no other, and devices take ten times as long."""
    if which[0]:
        torch.default_generator.manual_seed(seed)
    if which[1]:
        random.seed(seed)
    if which[2]:
        np.random.seed(seed & 0xFFFFFFFF)


def seeder(which: Generators) -> Callable[[int], object]:
    """``seed_for_sample`` of these generators, for each of many samples: torch's alone costs less."""
    if which == (True, False, False):
        return torch.default_generator.manual_seed
    return partial(seed_for_sample, which=which)


def cpu_state() -> CPUState:
    """The state of torch's CPU generator, ``random`` and numpy."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_cpu_state(state: CPUState) -> None:
    """Put back what ``cpu_state`` gave."""
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def drawn_since(seed: int, which: Generators, again: bool = True) -> Generators:
    """Of the CPU generators that ``seed_for_sample(seed, which)`` seeded, those that were drawn from since.

    A draw from each is compared: to read numpy's state takes 50 us.

    Args:
        seed: What they were seeded with.
        which: Those that are asked about.
        again: Leave them as freshly seeded; else nothing may draw from them until they are seeded again.
    """
    found = _draws(which)
    seed_for_sample(seed, which)
    fresh = _draws(which)
    if again:
        seed_for_sample(seed, which)
    return found[0] != fresh[0], found[1] != fresh[1], found[2] != fresh[2]


def _draws(which: Generators) -> CPUState:
    return (
        which[0] and int(torch.empty((), dtype=torch.int64).random_()),
        which[1] and random.getrandbits(64),
        which[2] and np.random.random_sample(),
    )


def full_state(device: torch.device) -> dict[str, Any]:
    """Everything a resumed run must put back, as plain data and tensors."""
    cpu, py, numpy = cpu_state()
    state = {"torch": cpu, "python": py, "numpy": numpy}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def set_full_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what ``full_state`` gave."""
    name, keys, *rest = state["numpy"]
    numpy = (name, np.asarray(keys, dtype=np.uint32), *rest)
    version, internal, gauss = state["python"]
    set_cpu_state((state["torch"], (version, tuple(internal), gauss), numpy))
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside leaves no trace: validation cannot change training."""
    state = full_state(device)
    try:
        yield
    finally:
        set_full_state(state, device)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draws inside depend on ``seed`` alone, and leave no trace."""
    with untouched(device):
        seed_for_sample(seed)
        if device.type != "cpu":
            torch.get_device_module(device).manual_seed(seed)
        yield


_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def generators_of(*owners: Any) -> list[Any]:
    """The generators that loaders, samplers and batch samplers carry, nested samplers included."""
    found: dict[int, Any] = {}
    for owner in owners:
        held = list(vars(owner).values()) if hasattr(owner, "__dict__") else []
        for value in [*held, getattr(owner, "generator", None)]:
            if isinstance(value, _GENERATORS):
                found[id(value)] = value
        inner = getattr(owner, "sampler", None)
        if inner is not None:
            found |= {id(g): g for g in generators_of(inner)}
    return list(found.values())


def seed_generator(generator: Any, seed: int) -> None:
    """Seed a generator of torch, ``random`` or numpy."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed if isinstance(generator, random.Random) else seed & 0xFFFFFFFF)


def putting_back(generator: Any) -> Callable[[], None]:
    """What puts a generator of torch, ``random`` or numpy back where it is now."""
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return partial(setattr, bits, "state", bits.state)
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())
