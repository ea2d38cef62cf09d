"""Generators by their memory: what comes back is what their own functions would have put back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from paceline.trainer.data import generator_memory
from paceline.trainer.data.generator_memory import moved, restore, seed_for_sample, snapshot
from paceline.trainer.rng import NONE, cpu_state, set_cpu_state


@pytest.fixture(autouse=True)
def _kept():
    state = cpu_state()
    yield
    set_cpu_state(state)


def same(first, second):
    numpy, other = first[2], second[2]
    return (
        torch.equal(first[0], second[0])
        and first[1] == second[1]
        and numpy[2:] == other[2:]
        and np.array_equal(numpy[1], other[1])
    )


DRAWS = {
    "torch": (lambda: torch.rand(()), lambda: torch.randn(17), lambda: torch.manual_seed(4)),
    # Normal numbers come in pairs: every other one moves no word.
    "random": (random.random, lambda: random.gauss(0, 1), lambda: random.shuffle(list(range(700)))),
    "numpy": (
        np.random.rand,
        np.random.randn,
        lambda: np.random.permutation(700),
        lambda: np.random.seed(3),
        lambda: np.random.set_state(np.random.get_state()),
    ),
    "none": (lambda: None,),
}


def test_memory_is_found_here():
    assert generator_memory._python.seen
    snapshot()
    assert generator_memory._numpy.words


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("start", range(15))
def test_any_draws_are_noticed_and_undone(start, hidden, monkeypatch):
    if hidden:  # as on a Python that keeps its words elsewhere
        monkeypatch.setattr(generator_memory._python, "seen", False)
        monkeypatch.setattr(generator_memory._numpy, "find", lambda: False)
        monkeypatch.setattr(generator_memory._numpy, "words", 0)
    chance = random.Random(start)
    seed_for_sample(start)
    kept = []
    for _ in range(40):
        before, full = snapshot(), cpu_state()
        kept.append((before, full))
        kinds = {chance.choice(list(DRAWS)) for _ in range(chance.randint(1, 3))}
        for kind in kinds:
            chance.choice(DRAWS[kind][:2])()
        assert moved(before, snapshot()) == tuple(k in kinds for k in ("torch", "random", "numpy"))
        for kind in kinds:
            chance.choice(DRAWS[kind])()
        if chance.random() < 0.4:
            before, full = chance.choice(kept)
            restore(before)
            assert same(cpu_state(), full)
            assert moved(before, snapshot()) == NONE
            random.gauss(0, 1), np.random.randn()
            restore(before)
            assert same(cpu_state(), full)


def test_a_half_put_back_by_the_user_is_kept():
    np.random.seed(0)
    np.random.randn()
    state = np.random.get_state()
    expected = np.random.randn()
    snapshot()
    np.random.set_state(state)
    restore(snapshot())
    assert np.random.randn() == expected


def test_seeds_are_those_of_the_generators_themselves():
    np.random.randn()
    random.gauss(0, 1)
    seed_for_sample(2**40 + 7)
    found = [torch.rand(()).item(), random.gauss(0, 1), np.random.randn(), np.random.randn()]
    torch.manual_seed(2**40 + 7)
    random.seed(2**40 + 7)
    np.random.seed((2**40 + 7) % 2**32)
    assert found == [torch.rand(()).item(), random.gauss(0, 1), np.random.randn(), np.random.randn()]


def test_their_own_functions_are_asked_only_where_they_must_be(monkeypatch):
    seed_for_sample(7)
    state = snapshot()

    def refuse(*arguments):
        raise AssertionError("slow")

    with monkeypatch.context() as patched:
        for module, name in ((np.random, "get_state"), (np.random, "set_state"), (random, "setstate")):
            patched.setattr(module, name, refuse)
        assert moved(state, snapshot()) == NONE
        random.random(), np.random.rand(), torch.rand(())
        restore(state)
        assert moved(state, snapshot()) == NONE


def test_another_kind_of_generator_is_left_to_numpy():
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        assert not generator_memory._numpy.find()
    finally:
        np.random.set_bit_generator(usual)
    assert generator_memory._numpy.find()
