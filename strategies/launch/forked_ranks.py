"""Ranks that are forked from a notebook's process, which waits for them and then continues.

A script is run again in each rank; a notebook cannot be. A fork has all that its cells have made.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from ...errors import PacelineError, explained, show_in_notebook, users_traceback
from .cell_output import CellOutput
from .failure_report import FailureReport
from .job_notes import (
    JOB,
    LAUNCHER,
    die_with_launcher,
    failures,
    note_end,
    note_failure,
    output_files,
    stops,
)
from .launcher import USED_TOO_EARLY, check_forkable, new_job_folder
from .port import hold_port
from .process_group import leave
from .slurm import REQUEUE_SIGNALS

_FORWARDED = (signal.SIGINT, signal.SIGTERM, *REQUEUE_SIGNALS)
_ONE_SIGNAL = 1.0  # seconds in which a second one is the same: Jupyter signals the whole process group
_TYPE = re.compile(r"^[\w.]+: ", re.MULTILINE)  # of an error, in its traceback
_GRACE = 4.0  # seconds for the others when a rank has failed; as many again after SIGTERM
_FORK = "in forked subprocess", "autograd's threading in combination with fork"  # torch's two errors


class RankFailedError(RuntimeError):
    """A rank that was forked from a notebook has failed; the message ends with its error."""


def run_forked(count: int, work: Callable[[], None]) -> int | None:
    """Fork ranks that call ``work``, with a launcher's variables set, and wait for their end.

    What rank 0 prints and displays appears here, what the others print in their run's logs. Signals are
    forwarded; the second one ends the ranks at once.

    Args:
        count: How many ranks.
        work: Called in each of them.

    Returns:
        The signal that stopped the ranks in order, or that came too late for that; None for none.

    Raises:
        PacelineError: where the ranks cannot be forked, or one of them raised it.
        RankFailedError: when a rank failed; the others are ended.
        KeyboardInterrupt: for a second signal, and for one that came before the run had begun.
    """
    check_forkable()
    torch.optim.SGD([torch.zeros(())])  # what torch imports for it takes seconds: once, not in each rank
    with new_job_folder() as folder, closing(hold_port()) as port, closing(CellOutput()) as output:
        job = Path(folder)
        start = _Start(count, job, port.getsockname()[1], output, work)
        with _forwarding() as signals:
            with _blocked():
                context: Any = torch.multiprocessing.start_processes(
                    _be_rank, (start,), nprocs=count, join=False, start_method="fork"
                )
                signals.ranks = context.processes
            output.close_writers()
            report = FailureReport(job, range(count))
            _wait(context, output, job, report)
        output.show_rest()
        codes = {rank: process.exitcode for rank, process in enumerate(context.processes)}
        report.failures = {rank: _Ended(rank, code) for rank, code in codes.items() if code}
        if report.failures:
            cut_off = signals.received is not None and not failures(job)
            raise KeyboardInterrupt if signals.at_once or cut_off else _error(job, report)
        return next(iter(stops(job)), signals.received)


@dataclass(frozen=True)
class _Start:
    """What every rank is started with."""

    count: int
    job: Path
    port: int
    output: CellOutput
    work: Callable[[], None]


@dataclass(frozen=True)
class _Ended:
    """How a rank ended, as ``FailureReport`` reads it."""

    local_rank: int
    exitcode: int


# -- the notebook's process --------------------------------------------------------------------


class _Signals:
    """Sends this process's signals to its ranks.

    Attributes:
        ranks: Their processes.
        received: The first signal.
        at_once: Whether a second one has ended them.
    """

    def __init__(self) -> None:
        self.ranks: list[Any] = []
        self.received: int | None = None
        self.at_once = False
        self._at = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Forward the first one; kill the ranks for the second."""
        now = time.monotonic()
        if self.received is None:
            self.received, self._at = number, now
        elif now - self._at > _ONE_SIGNAL:
            self.at_once, number = True, signal.SIGKILL
        else:
            return
        for process in self.ranks:
            if process.is_alive():
                os.kill(process.pid, number)


@contextmanager
def _forwarding() -> Iterator[_Signals]:
    signals, before = _Signals(), {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _FORWARDED:
                before[number] = signal.signal(number, signals.handle)
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _blocked() -> Iterator[None]:
    """Keep signals until all ranks have started, and until each rank has its own handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _wait(context: Any, output: CellOutput, job: Path, report: FailureReport) -> None:
    """Until all ranks have ended. When one has failed, the others get seconds for that."""
    ended = False
    while not ended:
        output.show_while_waiting(context.sentinels)
        report.dead = {rank for rank, process in enumerate(context.processes) if process.exitcode}
        if report.dead:
            note_end(job)
        try:
            ended = context.join(timeout=0, grace_period=_GRACE)
        except torch.multiprocessing.ProcessExitedException:
            ended = True


def _error(job: Path, report: FailureReport) -> Exception:
    """The error of the rank that failed first, to be shown as it was there."""
    _, text = report.first()
    mistakes = [one for one in failures(job).values() if one.mistake]
    error: Exception = RankFailedError(text)
    if mistakes:  # one that all ranks make is that of the notebook: who made it first means nothing
        text, code = mistakes[0].message, mistakes[0].code
        what = _TYPE.split(text, maxsplit=1)[-1]
        error = PacelineError(what.removesuffix(f"\n{explained(code)}") if code else what, code=code)
    show_in_notebook(error, text)
    return error


# -- a rank ------------------------------------------------------------------------------------


def _be_rank(rank: int, start: _Start) -> None:
    """What a forked process does, from its first moment to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _FORWARDED[1:]:
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)  # the kernel's event loop reads there
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    here: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank}
    here |= {"WORLD_SIZE": start.count, "LOCAL_WORLD_SIZE": start.count}
    here |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": start.port, JOB: start.job, LAUNCHER: os.getppid()}
    os.environ.update({name: str(value) for name, value in here.items()})
    try:
        die_with_launcher()
        torch.set_num_threads(1)  # OpenMP's threads are not forked, and waiting for them would never end
        if rank:
            _write_to_files(start, rank)
        else:
            start.output.send_from_here()
        start.work()
        leave()
        _flush()
    except BaseException as error:
        _fail(error)


def _write_to_files(start: _Start, rank: int) -> None:
    start.output.close_writers()
    for path, name, number in zip(output_files(start.job, rank), ("stdout", "stderr"), (1, 2), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            os.dup2(file.fileno(), number)
        setattr(sys, name, open(number, "w", buffering=1, errors="replace", closefd=False))  # noqa: SIM115


def _fail(error: BaseException) -> NoReturn:
    """End this rank, which others may wait for inside a collective, so that nothing is waited for."""
    code = 128 + signal.SIGINT
    if not isinstance(error, KeyboardInterrupt):
        code = 1
        if any(text in str(error) for text in _FORK):
            error.add_note(f"fix: {USED_TOO_EARLY}")
        note_failure(error, users_traceback(error))
    _flush()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
