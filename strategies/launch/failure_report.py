"""The launcher's last lines: how each rank ended, and the error of the one that failed first."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .job_notes import Failure, failures, last_output, verdict

_TAIL = 40  # lines of a rank's output
_LOST = ("Connection closed by peer", "Connection reset by peer")
"""What gloo says where another rank has gone."""
_EXIT = "SystemExit"


class FailureReport:
    """How the ranks of an attempt ended, and the error of the one that failed first.

    Args:
        job: The folder with the ranks' notes.
        ranks: Those to report of in any case.

    Attributes:
        failures: What is known of the ranks that failed, by rank: ``local_rank`` and ``exitcode``.
        dead: Local ranks that had ended before this process began to end the others.
    """

    def __init__(self, job: Path, ranks: Iterable[int]) -> None:
        self._job, self._known = job, ranks
        self.failures: dict[int, Any] = {}
        self.dead: set[int] = set()

    def print(self, then: str = "") -> int:
        """Print it; the exit code of the first one, 0 where none failed.

        Args:
            then: What happens next; "" where nothing does.
        """
        if not self.failures:
            print(then, file=sys.stderr, flush=True)
            return 0
        code, text = self.first()
        print("\n".join([text, *([then] if then else [])]), file=sys.stderr, flush=True)
        return code if code > 0 else 128 - code

    def first(self) -> tuple[int, str]:
        """The exit code of the rank that failed first, and the report, which ends with its error."""
        noted = failures(self._job)

        def order(rank: int) -> tuple[int, int]:
            # torch counts whole seconds. A rank that was killed writes no note: others fail by its absence.
            return (noted[rank].time if rank in noted else 0, -rank)

        # What else ended after the first one was ended by this process. Who failed first may end last:
        # others fail as soon as its connections are closed.
        by_itself = [r for r, one in self.failures.items() if one.local_rank in self.dead or r in noted]
        first = min(by_itself or self.failures, key=order)
        failure = self.failures[first]
        code, left = int(failure.exitcode), self._left_before(first, noted)
        first = first if left is None else left
        lines = ["how the ranks ended:"]
        for rank in sorted({*self._known, *self.failures, *noted}):
            lines.append("  " + self._line(rank, noted.get(rank), rank == first))
        last = verdict(self._job) or (noted[first].message if first in noted else "")
        if left is not None:
            lines += [last] if last else []
            last = f"rank {left} left before the run was over, and the others cannot continue without it"
            last += "\n  fix: no sys.exit or os._exit on one rank; trainer.stop(why) ends the run on all"
        if not last:
            output = last_output(self._job, failure.local_rank, _TAIL)
            lines += [f"what rank {first} wrote last:", *(f"  {line}" for line in output)] if output else []
            last = f"rank {first} ended with {_how(code)}; the others were stopped"
        return code, "\n".join([*lines, last])

    def _left_before(self, first: int, noted: dict[int, Failure]) -> int | None:
        """The rank by whose absence the first one failed: exit code 0 is no failure for a launcher."""
        if first not in noted or not any(sign in noted[first].message for sign in _LOST):
            return None
        exits = [r for r, one in noted.items() if one.time < noted[first].time and _EXIT in one.what]
        return next(iter([*exits, *(r for r in self._known if self._is_done(r))]), None)

    def _is_done(self, rank: int) -> bool:
        return rank in self.dead and rank not in self.failures

    def _line(self, rank: int, note: Failure | None, first: bool) -> str:
        failure = self.failures.get(rank)
        how = "ended with exit code 0" if self._is_done(rank) else "was stopped"
        if failure is not None:
            how = f"ended with {_how(int(failure.exitcode))}"
        return f"rank {rank} {how}" + (" first" if first else "") + (f": {note.what}" if note else "")


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
