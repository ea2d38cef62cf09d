"""A worker that hangs in its fork is forked again."""

from __future__ import annotations

import os
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader

from paceline.trainer.data.seeded_loader import private_copy
from paceline.trainer.data.workers import worker_fork as careful_fork
from paceline.trainer.data.workers.worker_processes import processes_of

pytestmark = pytest.mark.ranks  # loader workers are processes too


@pytest.fixture
def forks(monkeypatch):
    """The pids of children; the first of ``forks.stuck`` never come back from their fork."""
    real = os.fork

    class Forks(list):
        stuck = 1

    made = Forks()

    def fork() -> int:
        pid = real()
        if pid == 0 and len(made) < made.stuck:
            time.sleep(600)
        # Only one that is stuck is given up soon, however busy the machine is.
        monkeypatch.setattr(careful_fork, "_SECONDS", 0.5 if len(made) < made.stuck else 60)
        made.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", fork)
    return made


def loader() -> DataLoader:
    return DataLoader(
        torch.arange(10), batch_size=4, num_workers=2, multiprocessing_context=careful_fork.CarefulFork()
    )


def test_a_stuck_worker_is_forked_again(forks):
    assert [b.tolist() for b in loader()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(forks) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(forks[0], 0)


def test_one_that_never_starts_is_an_error(forks, monkeypatch):
    monkeypatch.setattr(careful_fork, "_TRIES", 2)
    forks.stuck = 9
    with pytest.raises(RuntimeError, match="did not start, in 2 attempts"):
        iter(loader())
    for pid in forks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python takes the lock itself")
def test_on_ranks_workers_are_forked_so(monkeypatch):
    plain = DataLoader(torch.arange(10), num_workers=2)
    spawning = DataLoader(torch.arange(10), num_workers=2, multiprocessing_context="spawn")

    def context_of(loader):
        duplicate = private_copy(loader)
        processes_of(duplicate)
        return duplicate.multiprocessing_context

    assert not isinstance(context_of(plain), careful_fork.CarefulFork)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert isinstance(context_of(plain), careful_fork.CarefulFork)
    assert context_of(spawning).get_start_method() == "spawn"
    assert plain.multiprocessing_context is None  # the user's loader stays as it is
