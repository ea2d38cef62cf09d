"""The CPU's random generators: seeded for a sample, draws from them noticed, and put back."""

import random

import numpy as np
import pytest
import torch
from helpers.feeds import same_state

from paceline.trainer.rng import (
    cpu_state,
    drawn_since,
    full_state,
    putting_back,
    seed_for_sample,
    set_cpu_state,
    set_full_state,
)

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
    ),
    "none": (lambda: None,),
}


@pytest.fixture(autouse=True)
def _kept():
    state = cpu_state()
    yield
    set_cpu_state(state)


@pytest.mark.parametrize("start", range(15))
def test_any_draws_from_seeded_generators_are_noticed_and_undone(start):
    chance = random.Random(start)
    for _ in range(40):
        seed = chance.randrange(2**63)
        seed_for_sample(seed)
        kinds = {chance.choice(list(DRAWS)) for _ in range(chance.randint(1, 3))}
        for kind in kinds:
            for _ in range(chance.randint(1, 3)):
                chance.choice(DRAWS[kind])()
        assert drawn_since(seed, (True, True, True)) == tuple(k in kinds for k in KINDS)
        found = cpu_state()
        seed_for_sample(seed)
        assert same_state(found, cpu_state())


@pytest.mark.parametrize("which", range(3))
def test_only_the_wanted_generators_are_seeded(which):
    before = cpu_state()
    wanted = tuple(number == which for number in range(3))
    seed_for_sample(11, wanted)
    between = cpu_state()
    for number in range(3):
        mixed = (*before[:number], between[number], *before[number + 1 :])
        assert same_state(before, mixed) == (number != which)
    assert drawn_since(11, wanted) == (False, False, False)
    assert same_state(between, cpu_state())


def test_seeds_are_those_of_the_generators_themselves():
    np.random.randn()
    random.gauss(0, 1)
    seed_for_sample(2**40 + 7)
    found = [torch.rand(()).item(), random.gauss(0, 1), np.random.randn(), np.random.randn()]
    torch.manual_seed(2**40 + 7)
    random.seed(2**40 + 7)
    np.random.seed((2**40 + 7) % 2**32)
    assert found == [torch.rand(()).item(), random.gauss(0, 1), np.random.randn(), np.random.randn()]


def test_the_second_number_of_a_pair_is_in_a_saved_state():
    device = torch.device("cpu")
    draws = [lambda: random.gauss(0, 1), np.random.randn, lambda: torch.rand(()).item()]
    for draw in draws:
        draw()
    saved = full_state(device)
    expected = [draw() for _ in range(3) for draw in draws]
    set_full_state(saved, device)
    assert [draw() for _ in range(3) for draw in draws] == expected


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (torch.Generator(), lambda g: torch.rand((), generator=g).item()),
        (random.Random(3), lambda g: g.random()),
        (np.random.default_rng(3), lambda g: g.random()),
        (np.random.RandomState(3), lambda g: g.random_sample()),
    ],
    ids=["torch", "random", "numpy", "numpy's old one"],
)
def test_a_generator_is_put_back(generator, draw):
    draw(generator)
    put_back = putting_back(generator)
    drawn = [draw(generator) for _ in range(3)]
    put_back()
    assert [draw(generator) for _ in range(3)] == drawn
