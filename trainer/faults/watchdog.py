"""Ends a run that makes no progress, and names the rank that the others wait for.

Each rank has a thread that looks once in a while how far the rank has come; the loop does nothing for it.
Where nothing has moved for longer than the phase allows, every rank writes the stacks of its threads beside
the run's files, the late one is named, and all of them end. A rank that cannot answer (stopped by SIGSTOP,
stuck outside Python) is woken by SIGCONT and asked by a real-time signal, which ``faulthandler`` answers
without Python.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple, Protocol

from ...durations import Duration
from ...errors import is_users_frame
from ...strategies.launch.job_notes import job_folder, note_verdict
from ...strategies.launch.process_group import reaches_rank_zero
from ...strategies.ranks import recursive_doubling
from ...strategies.ranks.collectives import Collectives
from ..state import TrainState
from ..utils.paths import shown_path
from .signals import end_at_once
from .thread_stacks import STACKS, all_stacks

PHASES = ("start", "first_step", "step", "validation", "save")
_SECONDS = 1800.0  # as long as torch waits for a collective
_ANSWER = 10.0  # for the other ranks' stacks
_WAKE = 2.0  # of these, before one that does not answer is woken
_SHOWN = 4
# None of those that batch systems send; 0 where the system has no such signals (macOS, Windows).
_ASKS = int(getattr(signal, "SIGRTMIN", -4)) + 4


def deadlines(timeouts: Any, world_size: int) -> dict[str, float]:
    """Seconds by phase; empty where nobody watches.

    Args:
        timeouts: As ``Trainer`` takes them.
        world_size: The number of ranks; on one, ``timeouts=None`` sets no limit.
    """
    if timeouts is False or (timeouts is None and world_size == 1):
        return {}
    by_phase = timeouts if isinstance(timeouts, dict) else dict.fromkeys(PHASES, timeouts)
    found = {phase: by_phase.get(phase) for phase in PHASES}
    return {
        phase: _SECONDS if value is None else float(Duration.parse(value).amount)
        for phase, value in found.items()
        if value is not False
    }


class Report(NamedTuple):
    """Where a rank was when it was asked.

    Args:
        step: Optimizer steps done.
        micro_batch: Micro-batches done in the epoch.
        beats: Things done that the counters of the run do not count.
        waits: Whether its main thread is inside of torch.distributed, so that it waits for others.
        order: Which part of a step it is in.
        doing: The same in words, with the user's own line.
        seconds: For how long.
        cut_off: Whether the host of rank 0 cannot be reached from the rank's own host.
    """

    rank: int
    step: int
    micro_batch: int
    beats: int
    waits: bool
    order: int
    doing: str
    seconds: float
    cut_off: bool = False


class RunFolder(Protocol):
    """Where a run writes."""

    @property
    def path(self) -> Path | None:
        """None before it is made, and where nothing is written."""

    def log_line(self, text: str, *, console: bool = True) -> None:
        """A line for the log; for the console too where asked."""


class Watchdog:
    """Watches one stage of a run; ``close`` ends that.

    Args:
        ranks: Of whom this is one; their processes are asked for.
        state: What counts the progress.
        directory: Where stacks are written, and lines logged.
        seconds: The longest time without progress, by phase; empty: nothing is watched.

    Attributes:
        phase: What the run is doing.
        beats: Goes up with each thing done that the counters of the run do not count.
    """

    def __init__(
        self, ranks: Collectives, state: TrainState, directory: RunFolder, seconds: dict[str, float]
    ) -> None:
        self.phase, self.beats = "start", 0
        self._state, self._directory, self._seconds = state, directory, seconds
        self._rank, self._world_size = ranks.rank, ranks.world_size
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._from_step = -1
        self._by_signal: IO[str] | None = None
        self._woken: set[int] = set()
        if not seconds:
            return
        self._main = threading.main_thread()
        self._processes = ranks.all_gather((platform.node(), os.getpid()))
        self._hosts = [host for host, _ in self._processes]
        self._every = min(max(min(seconds.values()) / 20, 0.02), 2.0)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Another phase, until this ends."""
        if phase == "step":
            self._from_step = self._state.global_step
        before, self.phase = self.phase, phase
        self.beats += 1
        try:
            yield
        finally:
            self.phase = before
            self.beats += 1

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._by_signal is not None:
            faulthandler.unregister(_ASKS)
            self._by_signal.close()
            with suppress(OSError):
                os.unlink(self._by_signal.name)

    def _watch(self) -> None:
        state = self._state
        seen: Any = None
        last = time.monotonic()
        while not self._closed.wait(self._every):
            now = (self.phase, self.beats, state.global_step, state.batch_idx)
            if now != seen:
                seen, last = now, time.monotonic()
                self._answer_by_signal()
            first = self.phase == "step" and state.global_step == self._from_step
            deadline = self._seconds.get("first_step" if first else self.phase)
            waited = time.monotonic() - last
            if self._asked() or (deadline is not None and waited > deadline):
                try:
                    self._expire(waited, deadline)
                finally:
                    end_at_once(1)

    def beat(self) -> None:
        """Something was done that no counter of the run counts."""
        self.beats += 1

    # -- the end -------------------------------------------------------------------------------

    def _folder(self) -> Path | None:
        """Where ranks write to each other: in the run's folder; before there is one, in the launcher's."""
        folder = self._directory.path or job_folder()
        return None if folder is None else folder / STACKS

    def _asked(self) -> bool:
        """Whether another rank's time is up."""
        folder = self._folder()
        return folder is not None and (folder / "asked").exists()

    def _answer_by_signal(self) -> None:
        """Let a signal write the stacks, from now on; it has to know the file beforehand."""
        folder = self._folder()
        if folder is None or self._by_signal is not None or not _ASKS:
            return
        if signal.getsignal(_ASKS) is not signal.SIG_DFL:  # somebody else's
            return
        name = f".stacks-rank-{self._rank}.txt"
        with suppress(OSError):
            self._by_signal = (folder.parent / name).open("w")
            faulthandler.register(_ASKS, self._by_signal, all_threads=True)

    def _expire(self, waited: float, deadline: float | None) -> None:
        folder = self._folder()
        mine = self._report(waited)
        reports, world_size = {mine.rank: mine}, self._world_size
        if folder is not None:
            folder.mkdir(exist_ok=True)
            (folder / "asked").touch()
            self._write(folder, mine)
            reports = self._others(folder)
        else:
            world_size = 1  # nothing is known of the others
        if self._directory.path is None:
            print(all_stacks(), file=sys.stderr, flush=True)
        host = self._hosts[self._rank]
        if mine.rank == min(rank for rank in reports if self._hosts[rank] == host):
            verdict = self._verdict(reports, world_size, waited, deadline)
            if mine.rank == min(reports):
                self._directory.log_line(verdict, console=False)
            if not note_verdict(verdict):
                print(verdict, file=sys.stderr, flush=True)
            if folder is not None:
                self._send(reports, signal.SIGKILL)
        else:
            time.sleep(_WAKE)  # the one that reports it is the first to end

    def _report(self, waited: float) -> Report:
        state = self._state
        frame = sys._current_frames().get(self._main.ident or 0)
        order, doing, waits = _doing(
            frame, "before step 1" if self.phase == "start" else "between two steps"
        )
        return Report(
            self._rank,
            state.global_step,
            state.batch_idx,
            self.beats,
            waits,
            order,
            doing,
            round(waited, 1),
            self._hosts[self._rank] != self._hosts[0] and not reaches_rank_zero(_WAKE),
        )

    def _write(self, folder: Path, report: Report) -> None:
        path = folder / f"rank-{report.rank}.txt"
        path.write_text(all_stacks(), encoding="utf-8")
        part = path.with_suffix(".part")
        part.write_text(json.dumps(report))
        part.replace(path.with_suffix(".json"))

    def _others(self, folder: Path) -> dict[int, Report]:
        """What all ranks say that answer in time; those that do not are woken, and asked by a signal."""
        start, woken = time.monotonic(), False
        while True:
            reports = _read(folder)
            passed = time.monotonic() - start
            if len(reports) == self._world_size or passed > _ANSWER:
                return reports
            if passed > _WAKE + self._every and not woken:
                woken = True
                self._woken = set(range(self._world_size)) - set(reports)
                self._send(reports, signal.SIGCONT, _ASKS)
            if woken and passed > 2 * _WAKE + self._every:
                self._collect(folder, reports)
                return reports
            time.sleep(0.05)

    def _collect(self, folder: Path, reports: dict[int, Report]) -> None:
        """Put what faulthandler wrote to the stacks of the others."""
        for rank in set(range(self._world_size)) - set(reports):
            written = folder.parent / f".stacks-rank-{rank}.txt"
            with suppress(OSError):
                if written.stat().st_size:
                    (folder / f"rank-{rank}.txt").write_text(written.read_text())

    def _send(self, reports: dict[int, Report], *numbers: int) -> None:
        """Signals to the ranks of this machine that do not answer."""
        silent = [place for rank, place in enumerate(self._processes) if rank not in reports]
        for number in numbers:
            for process in [process for host, process in silent if host == self._hosts[self._rank]]:
                with suppress(OSError):
                    os.kill(process, number)

    def _verdict(
        self, reports: dict[int, Report], world_size: int, waited: float, deadline: float | None
    ) -> str:
        """Who is late, and where everybody was."""
        silent = sorted(set(range(world_size)) - set(reports))
        behind = min(_how_far(report) for report in reports.values())
        late = [report.rank for report in reports.values() if _how_far(report) == behind]
        cut_off = sorted(report.rank for report in reports.values() if report.cut_off)
        if cut_off:
            who = f"{self._named(cut_off)} cannot reach {self._named([0])} over the network"
        elif silent:
            who = f"{self._named(silent)} does not answer"
        elif self._woken:
            who = f"{self._named(sorted(self._woken))} is late"
        elif world_size == 1:
            who = f"rank {late[0]} is stuck"
        else:
            who = f"{self._named(late)} is late" if len(late) == 1 else "no rank is behind the others"
        limit = f", and {deadline:g} s are allowed" if deadline is not None else ""
        lines = [f"{who}: no progress for {waited:.0f} s{limit} ({self.phase}); all ranks are ended"]
        lines += ["  it did not answer until it was woken"] * bool(self._woken)
        for report in sorted(reports.values())[:_SHOWN]:
            waits = ", waiting for others" if report.waits else ""
            lines.append(f"  rank {report.rank}: step {report.step + 1}, {report.doing}{waits}")
        if self._directory.path is not None:
            lines.append(f"  stacks: {shown_path(self._directory.path / STACKS)}")
        return "\n".join(lines)

    def _named(self, ranks: list[int]) -> str:
        """These ranks, with their hosts where there are several."""
        named = f"rank {', '.join(map(str, ranks))}"
        hosts = dict.fromkeys(self._hosts[rank] for rank in ranks)
        return f"{named} ({', '.join(hosts)})" if len(set(self._hosts)) > 1 else named


def _read(folder: Path) -> dict[int, Report]:
    """What ranks have said so far."""
    reports = {}
    for path in folder.glob("rank-*.json"):
        with suppress(OSError, ValueError):
            report = Report(*json.loads(path.read_text()))
            reports[report.rank] = report
    return reports


def _how_far(report: Report) -> tuple[int, int, int, bool, int]:
    """Less is behind."""
    return (report.step, report.micro_batch, report.beats, report.waits, report.order)


# Parts of a step, from the outside in; which comes first is behind.
_PARTS = {
    "interruptible": (0, "reading data"),
    "_read": (0, "reading data"),
    "training_step": (1, "in training_step"),
    "validation_step": (1, "in validation_step"),
    "backward": (2, "in backward"),
    "step": (3, "in the update"),
    "wait": (4, "waiting for a checkpoint"),
}


def _doing(frame: FrameType | None, doing: str) -> tuple[int, str, bool]:
    """Which part of a step a main thread is in, in words with the user's own line, and whether it waits.

    Args:
        frame: The innermost frame of the thread; None where it has none.
        doing: What it does where it is in none.
    """
    frames = list(reversed([f for f, _ in traceback.walk_stack(frame)])) if frame is not None else []
    order = 0
    for one in frames:
        name, module = one.f_code.co_name, one.f_globals.get("__name__", "")
        ours = module.startswith("paceline.") and not is_users_frame(one.f_code.co_filename)
        if name in ("training_step", "validation_step", "test_step", "predict_step") and not ours:
            order, doing = _PARTS.get(name, (1, f"in {name}"))
        elif ours and name in _PARTS:
            order, doing = _PARTS[name]
    users = [f for f in frames if is_users_frame(f.f_code.co_filename)]
    if users:
        code = users[-1].f_code
        doing += f", {code.co_filename}:{users[-1].f_lineno} in {code.co_name}"
    collectives = ("torch/distributed", recursive_doubling.__file__)
    waits = any(place in f.f_code.co_filename for f in frames for place in collectives)
    return order, doing, waits
