"""What torch.compile does during a run: how many graphs, how long, and why some are compiled again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...strategies.torch_internals import compilation_records, compile_callbacks, graph_breaks

_TRACED, _BACKWARD = "DYNAMO", "LAZY_BACKWARD"
_MOST_REASONS = 3  # of one kind: what a training batch, an evaluation and the last ones of both differ in
_SHOWN = 160


class CompileReport:
    """Counts compilations from ``begin`` to ``end``, and logs them.

    Args:
        log_line: Takes lines for the log.
    """

    def __init__(self, log_line: Callable[[str], None]) -> None:
        self._log_line = log_line
        self._callbacks: Any = None
        self._started = self._seconds = 0.0
        self._done: list[tuple[str, str]] = []  # what torch has compiled, and its id
        self._breaks = self._began = 0
        self._functions: dict[str, _Function] = {}
        self._warned = False

    def begin(self) -> None:
        """Count from here on."""
        self._callbacks = compile_callbacks()
        self._callbacks.register_start_callback(self._starts)
        self._callbacks.register_end_callback(self._ends)
        self._breaks, self._began = graph_breaks(), time.time_ns() // 1000

    def end(self) -> None:
        """Stop counting."""
        if self._callbacks is not None:
            self._callbacks.remove_start_callback(self._starts)
            self._callbacks.remove_end_callback(self._ends)

    def _starts(self, about: Any) -> None:
        self._started = time.perf_counter()

    def _ends(self, about: Any) -> None:
        self._seconds += time.perf_counter() - self._started
        self._done.append((about.callback_trigger.name, str(about.compile_id)))

    def report(self, place: str) -> None:
        """Log what was compiled since the last time."""
        if not self._done:
            return
        mine = [
            r for r in compilation_records() if r.start_time_us >= self._began and r.is_forward is not False
        ]
        records = {str(record.compile_id): record for record in mine}
        forwards = [records[key] for kind, key in self._done if kind == _TRACED and key in records]
        graphs = sum(kind in (_TRACED, _BACKWARD) for kind, _ in self._done)
        graphs -= sum(bool(record.fail_type) for record in forwards)
        again = [r for r in forwards if r.recompile_reason and not r.fail_type]
        breaks = graph_breaks()
        details = [f"{len(again)} recompiled: {_short(again[-1].recompile_reason)}"] if again else []
        if breaks > self._breaks:
            details.append(_count(breaks - self._breaks, "graph break"))
        if graphs:
            about = f" ({'; '.join(details)})" if details else ""
            self._log_line(f"{place}: compiled {_count(graphs, 'graph')}{about} in {self._seconds:.1f} s")
        self._done, self._seconds, self._breaks = [], 0.0, breaks
        for record in again:
            self._functions.setdefault(_frame(record), _Function()).note(record)
        for record in mine:
            if record.fail_type and _frame(record) in self._functions:
                self._functions[_frame(record)].given_up = True
        self._warn()

    def _warn(self) -> None:
        """Warn, once, about a function that is compiled again and again."""
        worst = max(self._functions.values(), key=lambda one: len(one.usual_reasons()), default=None)
        worst = next((one for one in self._functions.values() if one.given_up), worst)
        if self._warned or worst is None:
            return
        if len(worst.usual_reasons()) <= _MOST_REASONS and not worst.given_up:
            return
        self._warned = True
        reason = worst.usual_reasons()[-1]
        if re.search("size|stride|shape|rank", reason):
            cure = (
                "for shapes that change: compile={'dynamic': True}, inputs that are padded to a few sizes, "
                "or drop_last=True in the DataLoader"
            )
        else:
            cure = "keep what changes in a tensor, or out of the compiled part"
        ends = ", and runs it uncompiled from here on" if worst.given_up else ""
        self._log_line(
            f"warning: torch.compile has compiled {worst.name} again {worst.times} times{ends}; the usual "
            f"reason was: {reason}; {cure} (TORCH_LOGS=recompiles lists every reason)"
        )


@dataclass
class _Function:
    """What is known of one that was compiled again.

    Attributes:
        name: Its name and place.
        times: How often it was compiled again.
        given_up: Whether torch runs it uncompiled by now.
        reasons: The different ones of each kind: they are of one kind where only numbers differ.
    """

    name: str = ""
    times: int = 0
    given_up: bool = False
    reasons: dict[str, list[str]] = field(default_factory=dict)

    def note(self, record: Any) -> None:
        """Count a compilation, as torch has recorded it."""
        self.name = f"{record.co_name} ({Path(record.co_filename).name}:{record.co_firstlineno})"
        self.times += 1
        reason = _short(record.recompile_reason)
        of_kind = self.reasons.setdefault(re.sub(r"\d+", "#", reason), [])
        if reason not in of_kind:
            of_kind.append(reason)

    def usual_reasons(self) -> list[str]:
        """Those of the kind that has most of them."""
        return max(self.reasons.values(), key=len)


def _frame(record: Any) -> str:
    """Torch's number of the function: a record of one that it gave up has no name."""
    return str(record.compile_id).partition("/")[0]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _short(reason: str) -> str:
    """Torch's reason without the number of the graph, its hint and the spaces for alignment."""
    first = reason.split("\n")[0].partition("(HINT:")[0]
    return " ".join(re.sub(r"^\d+/\d+: ", "", first).split())[:_SHOWN]
