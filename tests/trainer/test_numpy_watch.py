"""numpy's global generator is seeded and kept when it is used, which nothing that uses it can tell."""

import copy
import os
import pickle
import random
import signal
import threading

import numpy as np
import pytest
import torch

from paceline.trainer import numpy_watch
from paceline.trainer.rng import (
    cpu_state,
    keep_cpu_state,
    put_back_cpu_state,
    seed_for_sample,
    set_cpu_state,
)

OTHER = np.random.RandomState(4).get_state()
USES = {
    "numbers": lambda: np.random.rand(3),
    "normal numbers, one of a pair": lambda: np.random.randn(),
    "whole numbers": lambda: np.random.randint(1000, size=5),
    "an order": lambda: np.random.permutation(30),
    "a choice": lambda: np.random.choice(50, 3, replace=False),
    "bytes": lambda: np.random.bytes(5),
    "raw": lambda: np.random.get_bit_generator().random_raw(2),
    "a Generator over it": lambda: np.random.Generator(np.random.get_bit_generator()).random(),
    "the state": lambda: np.random.get_state()[1].sum(),
    "the state of its bits": lambda: np.random.get_bit_generator().state["state"]["key"].sum(),
    "another seed": lambda: (np.random.seed(8), np.random.rand())[1],
    "another state": lambda: (np.random.set_state(np.random.RandomState(4).get_state()), np.random.rand())[
        1
    ],
    "nothing": lambda: 0,
}


@pytest.fixture(autouse=True)
def _kept():
    state = cpu_state()
    yield
    set_cpu_state(state)


@pytest.fixture(params=["watched", "not watched"])
def _either_way(request):
    """As it is, and as it is with a numpy that does not take our lock."""
    if request.param == "watched":
        yield
        return
    ours = np.random.get_bit_generator()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(numpy_watch, "_takes_locks", False)
        changed.setattr(numpy_watch, "_ours", None)
        np.random.set_bit_generator(np.random.MT19937())
        yield
        np.random.set_bit_generator(ours)


def test_this_numpy_is_watched():
    assert numpy_watch.is_watched()


def numbers(count: int = 5) -> list[float]:
    """Normal ones come in pairs, of which one may wait."""
    return [np.random.randn() for _ in range(count)]


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("use", USES)
def test_what_is_used_is_seeded_and_nothing_of_it_remains(use):
    def found() -> list:
        return np.asarray(bytearray(got) if isinstance(got := USES[use](), bytes) else got).tolist()

    np.random.seed(2**31 + 5)
    expected = [found(), numbers()]
    np.random.seed(1)
    whole = numbers(6)
    np.random.seed(1)
    first = numbers(1)  # the second of its pair waits
    for _ in range(2):
        kept = keep_cpu_state()
        seed_for_sample(2**31 + 5)
        got = [found(), numbers()] if use != "nothing" else None
        put_back_cpu_state(kept)
        assert got in (expected, None)
    assert first + numbers() == whole


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_what_is_kept_inside_of_what_is_kept(outer, inner, after):
    np.random.seed(1)
    whole = numbers(6)
    np.random.seed(7)
    sevens = numbers()
    np.random.seed(1)
    first = numbers(1)
    kept = keep_cpu_state()
    seed_for_sample(7)
    begun = numbers(1) if outer else []
    inside = keep_cpu_state()
    seed_for_sample(8)
    if inner:
        numbers(3)
    put_back_cpu_state(inside)
    if after:
        assert begun + numbers(5 - len(begun)) == sevens
    put_back_cpu_state(kept)
    assert first + numbers() == whole


def test_each_generator_is_put_back_and_one_that_is_not_used_costs_no_reading(monkeypatch):
    before = cpu_state()
    monkeypatch.setattr(np.random, "get_state", None)
    monkeypatch.setattr(np.random, "set_state", None)
    monkeypatch.setattr(np.random, "seed", None)
    for draw in (lambda: torch.rand(3), lambda: random.gauss(0, 1), lambda: None):
        kept = keep_cpu_state()
        seed_for_sample(3)
        draw()
        put_back_cpu_state(kept)
    monkeypatch.undo()
    now = cpu_state()
    assert torch.equal(before[0], now[0])
    assert before[1] == now[1]
    assert [str(part) for part in before[2]] == [str(part) for part in now[2]]


def test_copies_are_plain_generators_in_the_same_state():
    assert numpy_watch.is_watched()
    for copied in (copy.deepcopy, lambda bits: pickle.loads(pickle.dumps(bits))):
        bits = copied(np.random.get_bit_generator())
        assert type(bits) is np.random.MT19937
        assert str(bits.state) == str(np.random.get_bit_generator().state)
    numpy_watch.seed(5)
    bits = copy.deepcopy(np.random.get_bit_generator())
    assert np.random.RandomState(bits).random_sample() == np.random.RandomState(5).random_sample()


def test_a_generator_of_another_kind_is_left_to_the_user(monkeypatch):
    ours = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        assert not numpy_watch.is_watched()
        assert type(np.random.get_bit_generator()) is np.random.PCG64
    finally:
        np.random.set_bit_generator(ours)


def test_an_exception_out_of_a_signal_leaves_no_lock_taken():
    def stop(number, frame):
        raise InterruptedError

    class Interrupted:
        def seed(self, number):
            os.kill(os.getpid(), signal.SIGUSR2)
            raise AssertionError("the handler raises")

    lock = numpy_watch.Lock(Interrupted())
    lock.expect(3)
    before = signal.signal(signal.SIGUSR2, stop)
    try:
        with pytest.raises(InterruptedError), lock:
            pass
    finally:
        signal.signal(signal.SIGUSR2, before)
    other = threading.Thread(target=lambda: lock.acquire(timeout=60) and taken.append(1), daemon=True)
    taken: list[int] = []
    other.start()
    other.join()
    assert taken
