"""The CPU's random generators: seeded for a sample, compared, and put back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from paceline.trainer.rng import NONE, cpu_state, moved, seed_for_sample, set_cpu_state

KINDS = ("torch", "random", "numpy")
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


@pytest.fixture(autouse=True)
def _kept():
    state = cpu_state()
    yield
    set_cpu_state(state)


@pytest.mark.parametrize("start", range(15))
def test_any_draws_are_noticed_and_undone(start):
    chance = random.Random(start)
    seed_for_sample(start)
    kept = []
    for _ in range(40):
        before = cpu_state()
        kept.append(before)
        kinds = {chance.choice(list(DRAWS)) for _ in range(chance.randint(1, 3))}
        for kind in kinds:
            chance.choice(DRAWS[kind][:2])()
        assert moved(before, cpu_state()) == tuple(k in kinds for k in KINDS)
        for kind in kinds:
            chance.choice(DRAWS[kind])()
        if chance.random() < 0.4:
            before = chance.choice(kept)
            set_cpu_state(before)
            assert moved(before, cpu_state()) == NONE


@pytest.mark.parametrize("which", range(3))
def test_only_the_wanted_generators_are_seeded(which):
    before = cpu_state()
    wanted = tuple(number == which for number in range(3))
    seed_for_sample(11, wanted)
    assert moved(before, cpu_state()) == wanted


def test_seeds_are_those_of_the_generators_themselves():
    np.random.randn()
    random.gauss(0, 1)
    seed_for_sample(2**40 + 7)
    found = [torch.rand(()).item(), random.gauss(0, 1), np.random.randn(), np.random.randn()]
    torch.manual_seed(2**40 + 7)
    random.seed(2**40 + 7)
    np.random.seed((2**40 + 7) % 2**32)
    assert found == [torch.rand(()).item(), random.gauss(0, 1), np.random.randn(), np.random.randn()]


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_kind_of_numpy_generator_is_compared_too():
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        before = cpu_state()
        assert moved(before, cpu_state()) == NONE
        np.random.rand()
        assert moved(before, cpu_state()) == (False, False, True)
    finally:
        np.random.set_bit_generator(usual)
