"""Loaders with workers are read by a thread: signals, errors and broken-off passes."""

import gc
import multiprocessing
import multiprocessing.connection
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from helpers.loader_workers import wait_until_one_died, wait_until_sent
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings
from paceline.trainer.data.workers import loader_reader
from paceline.trainer.data.workers.worker_processes import WorkerProcesses
from paceline.trainer.faults.signals import SignalStop

pytestmark = pytest.mark.launch  # for its length

SIZE = 24


class Numbers(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index, torch.rand(()).item()


class Stuck(Numbers):
    """A read of sample 12 takes an hour."""

    def __getitem__(self, index):
        if index == 12:
            time.sleep(3600)
        return index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(SIZE))


def feed_of(data=None, signals=None, **options):
    options = {"batch_size": 4, "num_workers": 2} | options
    settings = FeedSettings(log_line=lambda line: None, **({"signals": signals} if signals else {}))
    return make_feed(DataLoader(Numbers() if data is None else data, **options), settings)


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "data reader"]


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """Nor a handler of torch's, which a loader that another test reads in this thread installs."""
    usual = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    assert readers() == []
    yield
    gc.collect()
    deadline = time.monotonic() + 60  # torch looks for a killed worker every 5 s
    try:
        while readers() or multiprocessing.active_children():
            assert time.monotonic() < deadline, (readers(), multiprocessing.active_children())
            time.sleep(0.01)
    finally:
        for worker in multiprocessing.active_children():
            worker.kill()
        unblock(readers())
        signal.signal(signal.SIGCHLD, usual)


@pytest.fixture
def signals():
    found = SignalStop(lambda reason, number: None, give_up_reads=True)
    yield found
    found.close()


# -- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [0, 2])
def test_a_handler_does_not_raise_while_a_queue_is_locked(monkeypatch, signals, batch):
    get, printed = queue.Queue._get, []

    def interrupted(self):
        if self.maxsize == 1:
            printed.append(signals.received)
            if len(printed) == batch + 1:
                signal.raise_signal(signal.SIGTERM)  # its handler runs here, in the main thread
        return get(self)

    monkeypatch.setattr(queue.Queue, "_get", interrupted)
    feed = feed_of(signals=signals)
    found = list(signals.interruptible(feed.steps(0)))
    assert len(found) == batch + 1  # the batch it had taken is not lost
    assert signals.received == signal.SIGTERM
    feed.close()


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_a_signal_ends_the_wait_for_a_stuck_worker(signals, options):
    feed = feed_of(Stuck(), signals, **options)
    steps = signals.interruptible(feed.steps(0))
    for _ in range(3):
        next(steps)
    workers = multiprocessing.active_children()
    sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    sender.start()
    assert list(steps) == []
    feed.close()
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * 2  # none came to its end
    assert multiprocessing.active_children() == []
    sender.join()


def test_a_signal_interrupts_a_read_in_this_process(signals):
    feed = feed_of(Stuck(), signals, num_workers=0)
    steps = signals.interruptible(feed.steps(0))
    for _ in range(3):
        next(steps)
    sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    sender.start()
    assert list(steps) == []
    sender.join()


class Killed(Numbers):
    def __getitem__(self, index):
        if index == 9:
            wait_until_sent()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_handler_that_torch_installed_before_raises_nowhere_else():
    """A loop of the user in the main thread has torch raise from then on wherever a worker dies."""
    usual = signal.getsignal(signal.SIGCHLD)
    list(DataLoader(Numbers(), num_workers=1))
    loud = signal.getsignal(signal.SIGCHLD)
    signals = SignalStop(lambda reason, number: None, give_up_reads=True)
    feed = feed_of(Killed(), signals, prefetch_factor=1)
    steps = feed.steps(0)
    try:
        next(steps)
        wait_until_one_died(workers=2)
        with pytest.raises(RuntimeError) as raised:
            list(steps)
        notes = str(raised.value.__notes__)
        assert "worker 0 was killed by SIGKILL, while reading dataset index 9" in notes
    finally:
        feed.close()
        signals.close()
        assert signal.getsignal(signal.SIGCHLD) is loud
        signal.signal(signal.SIGCHLD, usual)


def test_workers_that_are_killed_on_purpose_raise_nowhere(monkeypatch):
    usual = signal.getsignal(signal.SIGCHLD)
    list(DataLoader(Numbers(), num_workers=1))  # torch's handler
    monkeypatch.setattr(loader_reader, "_GRACE", 0.05)
    feed = feed_of(Stuck())
    steps = feed.steps(0)
    next(steps)
    try:
        steps.close()
        feed.close()
        assert multiprocessing.active_children() == []
    finally:
        signal.signal(signal.SIGCHLD, usual)


# -- passes that are broken off --------------------------------------------------------------------


@pytest.mark.parametrize("data", [Numbers(), Stream()])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_pass_that_is_broken_off_anywhere_ends(data, persistent):
    feed, chance = feed_of(data, persistent_workers=persistent), random.Random(3)
    for _ in range(8):
        steps = feed.steps(0)
        for _ in range(chance.randint(0, 6)):
            next(steps, None)
            time.sleep(chance.choice([0, 0, 0.01]))
        steps.close()
        if not persistent:
            assert readers() == []
            assert multiprocessing.active_children() == []
    batches = [batches[0] for batches, *_ in feed.steps(0)]
    numbers = torch.cat(batches if isinstance(data, Stream) else [batch[0] for batch in batches]).tolist()
    assert sorted(numbers) == list(range(SIZE))
    feed.close()
    assert readers() == []


class Slow(Numbers):
    def __getitem__(self, index):
        time.sleep(0.4)
        return index, os.getpid()


def test_persistent_workers_live_through_a_slow_pass_that_is_broken_off():
    feed = feed_of(Slow(), persistent_workers=True, prefetch_factor=1)
    found = []
    for _ in range(2):
        steps = feed.steps(0)
        found.append([set(next(steps)[0][0][1].tolist()) for _ in range(2)])
        steps.close()
    assert found[0] == found[1]
    feed.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_that_is_kept_keeps_no_worker(persistent):
    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 9:
                raise LookupError("no such file")
            return index

    feed = feed_of(Broken(), persistent_workers=persistent)
    with pytest.raises(LookupError, match="no such file") as raised:
        list(feed.steps(0))
    feed.close()
    assert readers() == []
    assert multiprocessing.active_children() == []
    assert "worker 0, while reading dataset index 9" in raised.value.__notes__


def test_a_worker_that_is_killed_while_it_sends_is_an_error(monkeypatch):
    """The rest of the batch is never written, and torch would wait for it for ever."""
    monkeypatch.setattr(loader_reader, "_LOST_AFTER", 1.0)
    loader = DataLoader(Numbers(), 1, num_workers=2, prefetch_factor=4, collate_fn=much)
    feed = make_feed(loader, FeedSettings())
    steps = feed.steps(0)
    next(steps)
    time.sleep(0.5)  # the pipe is full: one of them has begun with a batch, and waits
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid") as raised:
        list(steps)
    assert "was killed by SIGKILL" in str(raised.value.__notes__)
    feed.close()
    unblock(readers())


def much(samples):
    return np.ones(500_000)


def unblock(threads):
    """The one that waits for the rest stays, as a daemon; the tests after this one count threads."""
    for thread in threads:
        thread.name = "left behind"


@pytest.mark.parametrize("own_iter", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_workers_of_an_unclosed_pass_do_not_hold_up_the_exit(own_iter):
    script = """
import sys, time
from torch.utils.data import DataLoader
from paceline.trainer.data.factory import make_feed
from paceline.trainer.data.feed import FeedSettings
from paceline.trainer.data.workers.worker_processes import WorkerProcesses

class Stuck(list):
    def __getitem__(self, index):
        if index == 5:
            time.sleep(3600)
        return index

class Own(DataLoader):
    def __iter__(self):
        return super().__iter__()

if __name__ == "__main__":
    kind = Own if sys.argv[1] == "True" else DataLoader
    feed = make_feed(kind(Stuck(range(9)), 1, num_workers=2), FeedSettings())
    steps = feed.steps(0)
    print([next(steps) for _ in range(5)])  # the next one is waited for
"""
    command = [sys.executable, "-c", script, str(own_iter)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


# -- as if it was read here ------------------------------------------------------------------------


class Gradients(Numbers):
    def __getitem__(self, index):
        return torch.is_grad_enabled()


@pytest.mark.parametrize("gradients", [False, True])
def test_workers_inherit_whether_gradients_are_kept(gradients):
    feed = feed_of(Gradients())
    with torch.set_grad_enabled(gradients):
        found = {bool(kept) for batches, *_ in feed.steps(0) for kept in batches[0]}
    assert found == {gradients}


class Own(DataLoader):
    def __iter__(self):
        self.dataset.threads.add(threading.current_thread())
        return super().__iter__()


class Keeping(DataLoader):
    """Counts what it gave: reading ahead would make it count more."""

    def state_dict(self):
        return {}


@pytest.mark.parametrize(("kind", "workers"), [(Own, 2), (Own, 0), (Keeping, 2), (DataLoader, 0)])
def test_what_runs_code_of_the_user_or_counts_is_read_in_this_thread(kind, workers):
    data = Numbers()
    data.threads = set()
    feed = make_feed(kind(data, 4, num_workers=workers), FeedSettings())
    steps = feed.steps(0)
    next(steps)
    assert readers() == []
    steps.close()
    assert data.threads <= {threading.main_thread()}


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.soak), "fork"])
def test_workers_start_by_the_loader_s_own_method(method):
    data = torch.utils.data.TensorDataset(torch.arange(8))
    feed = feed_of(data, multiprocessing_context=method, num_workers=1)
    assert [batches[0][0].tolist() for batches, *_ in feed.steps(0)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_exit_code_that_another_thread_is_asking_for_is_waited_for():
    """Of two that ask at once one gets the code from the system, and the other None."""
    workers = WorkerProcesses(1, multiprocessing.get_context("fork"))
    process = workers.context().Process(target=os._exit, args=(3,))
    process.start()
    process.join(30)  # the sentinel may be ready a moment before the code
    asked = []

    class Hidden:
        """The process, whose code is not to be had at the first two times."""

        pid, sentinel = process.pid, process.sentinel

        @property
        def exitcode(self):
            asked.append(process.exitcode)
            return asked[-1] if len(asked) > 2 else None

    workers._processes = [Hidden()]
    assert workers.ended() == [(0, 3)]
    assert len(asked) == 3


def test_a_worker_that_was_not_started_has_not_ended():
    workers = WorkerProcesses(2, multiprocessing.get_context("fork"))
    workers.context().Process(target=os._exit)
    assert workers.ended() == []
