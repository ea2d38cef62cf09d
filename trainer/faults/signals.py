"""Signals stop a run where its state is whole: at the end of a step, which all ranks agree on.

The handler sets a flag. It is looked at after every step and every batch of a validation, after a save,
and before step 1. On one device a read of data is given up: the batch it would have given is read again
when the run is resumed. On several ranks the others are on their way into the step already, and need it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.queues import JoinableQueue, Queue, SimpleQueue
from types import FrameType
from typing import Any, NoReturn, TypeVar

from ...errors import shorten_traceback
from ...strategies.launch.job_notes import is_ended, is_supervised, note_stop
from ...strategies.launch.launcher import is_notebook
from ...strategies.launch.slurm import REQUEUE_SIGNALS

T = TypeVar("T")
WATCHED = (signal.SIGINT, signal.SIGTERM, *REQUEUE_SIGNALS)
_ONE_SIGNAL = 0.2
_ONE_SIGNAL_TWICE = 1.0  # a batch system and the launcher both send it: that is one
_LATER = 0.01  # seconds until a read that is not to be interrupted now is interrupted
_LOST = 0.2  # seconds until a signal is sent again whose handler has not run: it came just before a wait
_LOCKED = {queue.put.__code__ for queue in (Queue, JoinableQueue, SimpleQueue)}
_LOCKED |= {threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__}
_WAITS = threading.Condition.wait.__code__  # waits with the lock free; what it calls releases and takes it
_CLOSED, _AGAIN, _HANDLED = b"\0", b"\xff", b"\xfe"  # what is no signal's number
_END: Any = object()


class StopWaiting(BaseException):
    """Raised inside a read of data that is given up."""


class Signals:
    """What a read of data asks about signals; this one listens for none."""

    def call_interruptible(self, call: Callable[..., T], *args: Any) -> T:
        """Call code of the user that may wait: a signal may raise ``StopWaiting`` inside of it.

        Never for what takes locks, which an exception out of a signal's handler may leave taken.
        """
        return call(*args)

    def give_up(self) -> None:
        """Raise ``StopWaiting`` where a signal wants the read under way given up."""

    def quiet_children(self) -> None:
        """See that no handler of SIGCHLD raises from now on."""


class SignalStop(Signals):
    """Turns the first signal into a wish to stop and the second into an immediate exit.

    In a notebook the second one is a KeyboardInterrupt: what its cells have made is kept. ``close`` puts
    everything back as it was. Python runs handlers in the main thread only: elsewhere nothing is installed.

    Args:
        stop: Takes the reason and the signal's number; it may do no more than note them.
        give_up_reads: Whether a read of data may be given up.
        in_batch_job: Whether a batch system sends signals: several, such as SIGTERM when it preempts a job
            and SIGUSR1 before the end of its grace time. There only a second SIGINT ends at once.
    """

    def __init__(
        self, stop: Callable[[str, int], None], give_up_reads: bool, in_batch_job: bool = False
    ) -> None:
        self._stop, self._in_batch_job = stop, in_batch_job
        self._give_up_reads = give_up_reads
        self._reading = self._raises = self._again = False
        self._echoes: list[int] = []  # what this object has sent again and not heard yet
        self._before: dict[int, Any] = {}
        self._loud: Any = None  # the handler of SIGCHLD that was there, and what calls it now
        self._quiet: Any = None
        self.received: int | None = None
        self._received_at = 0.0
        self._keeps_process = is_notebook() and not is_supervised()
        self._main = threading.get_ident()
        if threading.current_thread() is not threading.main_thread():
            return
        for number in WATCHED:
            self._before[number] = signal.signal(number, self._handle)
        self.quiet_children()
        # The main thread runs no handler inside a collective; this thread hears of signals there too.
        self._ears, self._mouth = os.pipe()
        os.set_blocking(self._mouth, False)
        self._other = signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self._again = self._again, False
        holds_lock = self._raises and _holds_lock(frame)
        with contextlib.suppress(BlockingIOError):  # many signals wait there, which are delivered
            os.write(self._mouth, _AGAIN if holds_lock else _HANDLED)
        if not again or self.received is None:
            self._note(number, frame)
        if self._raises and not holds_lock:
            self.give_up()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = number, time.monotonic()
            self._stop(f"{signal.Signals(number).name} received", number)
        earlier = self._before.get(number)
        if number in REQUEUE_SIGNALS and callable(earlier):
            return  # it may end the process: after the save
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)
        if self._keeps_process and time.monotonic() - self._received_at > _ONE_SIGNAL:
            raise KeyboardInterrupt

    def _listen(self) -> None:
        first, latest = None, None  # when the first one came, and one whose handler has not run
        one_signal = _ONE_SIGNAL_TWICE if is_supervised() else _ONE_SIGNAL
        while (byte := self._hear(latest)) != _CLOSED:
            if byte in (_AGAIN, _HANDLED):
                if byte == _AGAIN and latest is not None:
                    time.sleep(_LATER)
                    self._send_again(latest)
                latest = None
                continue
            latest = byte[0] if byte[0] in WATCHED else latest
            if byte[0] in self._echoes:
                self._echoes.remove(byte[0])
                continue
            if self._other != -1:
                os.write(self._other, byte)
            if byte[0] not in WATCHED:
                continue
            now = time.monotonic()
            if first is None:
                first = now
                if is_ended():
                    continue
                # A write to the descriptor: print may be under way in the main thread.
                more = b"" if self._in_batch_job else b"; a second signal ends at once"
                os.write(2, b"\nstopping at the end of this step%s\n" % more)
            elif self._keeps_process or (self._in_batch_job and byte[0] != signal.SIGINT):
                continue
            elif now - first > one_signal:
                end_at_once(128 + byte[0])

    def _hear(self, latest: int | None) -> bytes:
        """The next byte; until then a signal that should end the read under way is sent again."""
        ears = select.poll()
        ears.register(self._ears, select.POLLIN)
        while latest is not None and not ears.poll(_LOST * 1000):
            if self._reading and self._raises and not self._echoes:
                self._send_again(latest)
        return os.read(self._ears, 1)

    def _send_again(self, number: int) -> None:
        self._echoes.append(number)
        self._again = True
        signal.pthread_kill(self._main, number)

    def interruptible(self, reads: Iterator[T]) -> Iterator[T]:
        """What ``reads`` gives, until a signal comes while it is waited for."""
        if not self._give_up_reads:
            yield from reads
            return
        try:
            while True:
                self._reading = True
                if self.received is not None:
                    return
                item = next(reads, _END)
                self._reading = False
                if item is _END:
                    return
                yield item
        except StopWaiting:
            pass
        finally:
            self._reading = False

    def call_interruptible(self, call: Callable[..., T], *args: Any) -> T:
        if threading.get_ident() != self._main:
            return call(*args)
        before, self._raises = self._raises, True
        try:
            self.give_up()  # for a signal that came before
            return call(*args)
        finally:
            self._raises = before

    def give_up(self) -> None:
        """In the main thread only; elsewhere it does nothing."""
        if self._reading and self.received is not None and threading.get_ident() == self._main:
            self._reading = False
            raise StopWaiting

    def quiet_children(self) -> None:
        """Torch's DataLoader installs one that raises, wherever the main thread is, when a worker dies.

        It does so where it is iterated over in the main thread: in a loop of the user before this run, or
        in an ``__iter__`` of the user within it. A read that needs that worker fails all the same.
        """
        child = getattr(signal, "SIGCHLD", None)
        present = None if child is None else signal.getsignal(child)
        if child is None or not callable(present) or present is self._quiet:
            return
        if threading.current_thread() is not threading.main_thread():
            return

        def quiet(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(Exception):
                present(number, frame)

        self._loud, self._quiet = present, quiet
        signal.signal(child, quiet)

    def close(self) -> None:
        """Put the earlier handlers back."""
        if not self._before:
            return
        if self._quiet is not None and signal.getsignal(signal.SIGCHLD) is self._quiet:
            signal.signal(signal.SIGCHLD, self._loud)
        signal.set_wakeup_fd(self._other)
        os.write(self._mouth, _CLOSED)
        self._thread.join()  # while the handlers are there: it may be about to send a signal
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        os.close(self._ears)
        os.close(self._mouth)

    def reraise(self, number: int | None, requeue: Callable[[int], None] | None = None) -> None:
        """After an orderly stop, end the process as the signal meant: nothing of the script runs on.

        Args:
            number: The signal that stopped the run, which another rank may have received.
            requeue: Takes the signal: requeues this job where it means that. A handler that the script has
                for SIGUSR1 or SIGUSR2, such as submitit's, is called before.
        """
        if number is None:
            return
        handler = signal.getsignal(number)
        if number in REQUEUE_SIGNALS and callable(handler):
            handler(number, None)
        if requeue is not None:
            requeue(number)
        if is_supervised():
            note_stop(number)  # any other exit code is a failure to the agent
            raise SystemExit(0)
        raise_signal(number)


def _holds_lock(frame: FrameType | None) -> bool:
    """Whether an exception raised now may leave the lock of a queue taken, and what needs it waiting."""
    called = None
    while frame is not None:
        if frame.f_code in _LOCKED or (frame.f_code is _WAITS and called is not None):
            return True
        called, frame = frame, frame.f_back
    return False


def raise_signal(number: int) -> NoReturn:
    """What a signal means to a process that has stopped in order.

    Raises:
        KeyboardInterrupt: for SIGINT.
        SystemExit: for any other.
    """
    if number == signal.SIGINT:
        interrupt = KeyboardInterrupt()
        shorten_traceback(interrupt)
        raise interrupt
    raise SystemExit(128 + number)


def end_at_once(code: int) -> NoReturn:
    """End this process and its loader workers, from any thread."""
    for child in multiprocessing.active_children():
        if child.daemon:  # a loader's workers, which would look for us a few seconds on
            child.kill()
    os._exit(code)
