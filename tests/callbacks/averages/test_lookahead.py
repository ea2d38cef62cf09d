"""Lookahead: its weights against a plain loop, saved and resumed."""

import pytest
import torch
from helpers.averages import Net, assert_same, fit, lookahead_by_hand, parameters
from torch.utils.data import DataLoader, IterableDataset

from paceline import PacelineError
from paceline.callbacks import Checkpoint, Lookahead


@pytest.mark.parametrize("alpha", [0.5, 0.2, lambda done: 1 - 0.8 * done**3])
@pytest.mark.parametrize("every", [1, 4])
def test_it_is_that_of_a_plain_loop(every, alpha):
    module, lookahead = Net(), Lookahead(every, alpha)
    fit(module, lookahead)
    assert lookahead.averaged == 18 // every
    assert_same(parameters(module), lookahead_by_hand(every, alpha))


def test_it_changes_the_run():
    plain = Net()
    fit(plain)
    found = lookahead_by_hand(4, 0.5)
    assert max((found[name] - value).abs().max() for name, value in parameters(plain).items()) > 0.01


@pytest.mark.parametrize("stop", [3, 4, 7])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, stop):
    whole, module = Net(), Net()
    fit(whole, Lookahead(4))
    settings = {"run_dir": tmp_path, "name": "n"}
    fit(Net(), Lookahead(4), Checkpoint(), max_steps=stop, max_epochs=None, **settings)
    fit(module, Lookahead(4), Checkpoint(), resume="latest", **settings)
    assert_same(parameters(module), parameters(whole), 0)


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield (torch.zeros(2),)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Lookahead(0), "every: got 0"),
        (lambda: Lookahead(alpha=1.0), "alpha: got 1.0"),
        (lambda: Lookahead(alpha="x"), "a number between 0 and 1"),
        (
            lambda: fit(
                Net(),
                Lookahead(alpha=lambda done: 1 - done),
                data=DataLoader(Endless(), 4),
                max_epochs=None,
                max_time="1s",
            ),
            "how many steps it has is unknown",
        ),
    ],
)
def test_mistakes(make, part):
    with pytest.raises(PacelineError, match=part):
        make()
