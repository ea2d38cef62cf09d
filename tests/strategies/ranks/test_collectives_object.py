"""``Collectives``, built without a Trainer, and the functions that share an error."""

import pytest
import torch

from paceline import PacelineError, Trainer
from paceline.strategies import Distributed, Environment, GroupCollectives, Single, make_precision
from paceline.strategies.ranks.collectives import Attempt, Collectives, run_on_all
from paceline.trainer.loops.lifecycle import attach


class Scripted(GroupCollectives):
    """A rank of two; what the other one sends is given by the test."""

    def __init__(self, rank, received=None):
        super().__init__(Environment(torch.device("cpu"), rank=rank, world_size=2))
        self.received, self.sent = received, []

    def broadcast(self, value, source=0):
        self.sent.append(value)
        return value if self.environment.rank == source else self.received

    def all_gather(self, value):
        self.sent.append(value)
        pair = [value, self.received]
        return pair if self.environment.rank == 0 else pair[::-1]


def fails():
    raise OSError("no space")


def test_on_one_device_all_is_immediate():
    strategy = Single()
    strategy.attach(Environment(torch.device("cpu")), make_precision("32"))
    ranks = strategy.collectives
    assert (ranks.rank, ranks.world_size, ranks.is_global_zero) == (0, 1, True)
    assert ranks.broadcast(3) == 3
    assert ranks.all_gather(3) == [3]
    assert ranks.on_rank_zero(lambda: 5) == 5
    with ranks.main_process_first():
        ranks.barrier()
    with pytest.raises(OSError, match="no space"):
        ranks.on_rank_zero(fails)


def test_the_process_that_starts_ranks_talks_to_nobody():
    strategy = Distributed()
    strategy.attach(Environment(torch.device("cpu"), world_size=2, starts=2), make_precision("32"))
    ranks = strategy.collectives
    ranks.barrier()
    assert ranks.broadcast("value") == "value"
    assert type(ranks) is Collectives


def test_a_strategy_of_several_ranks_that_reaches_no_other_is_refused():
    class Alone(Single):
        name, many_ranks = "alone", True

    settings, precision = Trainer(accelerator="cpu", devices=1).settings, make_precision("32")
    attach(Alone(), settings, Environment(torch.device("cpu")), precision)
    with pytest.raises(PacelineError, match="'alone' is one of 2 ranks") as raised:
        attach(Alone(), settings, Environment(torch.device("cpu"), rank=1, world_size=2), precision)
    assert "set self.collectives in attach" in str(raised.value)


def test_rank_zero_alone_calls_and_the_others_get_the_result():
    zero, one = Scripted(0), Scripted(1, received=("folder", None, None))
    assert zero.on_rank_zero(lambda: "folder") == "folder"
    assert zero.sent == [("folder", None, None)]
    assert one.on_rank_zero(fails) == "folder"


def test_an_error_of_rank_zero_is_its_own_there_and_a_paceline_error_on_the_others():
    zero, one = Scripted(0), Scripted(1, received=(None, "no space", None))
    with pytest.raises(OSError, match="no space"):
        zero.on_rank_zero(fails)
    with pytest.raises(PacelineError, match="no space"):
        one.on_rank_zero(lambda: None)


def test_what_fails_on_the_first_process_is_reported_on_the_others():
    one = Scripted(1, received=["OSError: no space"])
    with (
        pytest.raises(PacelineError, match="rank 0 failed in what it does first: OSError: no space"),
        one.main_process_first(),
    ):
        raise AssertionError("the block must not run")


def test_all_ranks_raise_what_one_has_raised():
    class Damaged(PacelineError):
        pass

    class Away(PacelineError):
        pass

    assert run_on_all(lambda mine: [mine, []], lambda: 4, Damaged, Away) == 4
    for number, kind in enumerate((Damaged, Away)):
        everyone = [[], [(number, "no disk", "disk-full")]]
        with pytest.raises(kind, match="no disk") as raised:
            run_on_all(lambda mine, all_ranks=everyone: all_ranks, lambda: 4, Damaged, Away)
        assert raised.value.code == "disk-full"


def test_an_error_of_another_kind_is_not_shared():
    with pytest.raises(OSError, match="no space"):
        run_on_all(lambda mine: [mine], fails, PacelineError)


def test_an_attempt_has_a_result_or_an_error():
    assert (Attempt.of(lambda: 3).result, Attempt.of(lambda: 3).problem) == (3, None)
    assert Attempt.of(fails).problem == "no space"
