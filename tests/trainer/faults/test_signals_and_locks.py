"""A signal ends a read in the main thread, and leaves no lock of a queue taken."""

import multiprocessing
import multiprocessing.queues
import queue
import signal
import sys
import threading
import time

import pytest

from paceline.trainer.faults.signals import SignalStop

SECONDS = 60


@pytest.fixture
def signals():
    found = SignalStop(lambda reason, number: None, give_up_reads=True)
    yield found
    found.close()


def read(signals, get):
    """What a loop gets until a signal ends the read that is under way."""

    def reads():
        while True:
            yield signals.call_interruptible(get)

    return list(signals.interruptible(reads()))


class Interrupting:
    """A lock that sends SIGTERM to the main thread during one of its operations, once.

    Args:
        operation: ``__enter__`` or ``release``: the signal comes when the lock was taken or released;
            ``__exit__`` or ``acquire``: just before that.
    """

    def __init__(self, operation):
        self._lock, self._operation = threading.Lock(), operation
        self.locked = self._lock.locked
        self.waited_with = threading.Event()  # a condition has released it, to wait

    def _comes(self, operation):
        if operation == self._operation and threading.current_thread() is threading.main_thread():
            self._operation = None
            signal.raise_signal(signal.SIGTERM)

    def acquire(self, blocking=True, timeout=-1):
        if blocking:
            self._comes("acquire")
        return self._lock.acquire(blocking, timeout)

    def release(self):
        self._lock.release()
        self._comes("release")
        self.waited_with.set()

    def __enter__(self):
        self._lock.acquire()
        self._comes("__enter__")

    def __exit__(self, *error):
        self._comes("__exit__")
        self._lock.release()


def queue_with(lock):
    found = queue.Queue()
    found.mutex = lock
    found.not_empty, found.not_full = threading.Condition(lock), threading.Condition(lock)
    return found


@pytest.mark.fault(7)
@pytest.mark.parametrize(
    ("operation", "expected"), [("__enter__", [1]), ("__exit__", [1]), ("release", []), ("acquire", [1])]
)
def test_a_signal_that_comes_while_a_queue_takes_its_lock_leaves_it_free(signals, operation, expected):
    """As where torch's thread for pinned memory, which a loader's end waits for, puts what is read."""
    lock = Interrupting(operation)
    results = queue_with(lock)

    def put_when_waited_for():
        lock.waited_with.wait(SECONDS)
        results.put(1)

    putting = None
    if operation.startswith("__"):
        results.queue.append(1)
    elif operation == "acquire":
        putting = threading.Thread(target=put_when_waited_for)
        putting.start()
    assert read(signals, results.get) == expected
    assert signals.received == signal.SIGTERM
    assert not lock.locked()
    if putting is not None:
        putting.join()


@pytest.mark.fault(7)
@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_a_signal_that_comes_while_a_worker_is_sent_something_leaves_the_lock_free(
    monkeypatch, signals, kind
):
    """The end of a worker is sent through the same queue."""
    sent = getattr(multiprocessing.get_context("fork"), kind)()
    code = getattr(multiprocessing.queues, kind).put.__code__
    enter, came = threading.Condition.__enter__, []

    def entered(condition):
        found = enter(condition)
        if sys._getframe(1).f_code is code and not came:
            came.append(signal.raise_signal(signal.SIGTERM))
        return found

    monkeypatch.setattr(threading.Condition, "__enter__", entered)
    read(signals, lambda: sent.put("what to read"))
    ending = threading.Thread(target=sent.put, args=("the end",), daemon=True)
    ending.start()
    ending.join(SECONDS)
    assert not ending.is_alive()
    assert came
    assert [sent.get(timeout=SECONDS) for _ in range(2)] == ["what to read", "the end"]
    sent.close()
    sent.join_thread()


@pytest.mark.fault(7)
def test_a_signal_that_interrupts_nothing_ends_a_wait_for_a_queue(signals):
    """Another thread gets it, or it comes just before the wait: Python runs no handler before its end."""
    results, main = queue.Queue(), threading.main_thread().ident

    def receives():
        looks = 0
        while looks < 20:  # it has the time to begin to wait
            time.sleep(0.01)
            waits = sys._current_frames()[main].f_code is threading.Condition.wait.__code__
            looks = looks + 1 if waits else 0
        signal.raise_signal(signal.SIGTERM)

    def ends_the_wait():
        if not ended.wait(SECONDS):
            late.append(True)
            results.put(1)

    ended, late = threading.Event(), []
    threads = [threading.Thread(target=receives), threading.Thread(target=ends_the_wait)]
    for thread in threads:
        thread.start()
    found = read(signals, results.get)
    ended.set()
    assert (found, late) == ([], [])
    assert not results.mutex.locked()
    for thread in threads:
        thread.join()
