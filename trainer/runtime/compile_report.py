"""What torch.compile does during a run: how many graphs, how long, and why some are compiled again."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...strategies.torch_internals import compilation_records, compile_callbacks, graph_breaks

_TRACED, _BACKWARD = "DYNAMO", "LAZY_BACKWARD"
_MOST_AGAIN = 3  # of one function: another batch size, evaluation, and evaluation in another size
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
        self._breaks = 0
        self._again: Counter[str] = Counter()
        self._warned = False

    def begin(self) -> None:
        """Count from here on."""
        self._callbacks = compile_callbacks()
        self._callbacks.register_start_callback(self._starts)
        self._callbacks.register_end_callback(self._ends)
        self._breaks = graph_breaks()

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
        records = {str(record.compile_id): record for record in compilation_records() if record.is_forward}
        forwards = [records.get(key) for kind, key in self._done if kind == _TRACED]
        given_up = [record for record in forwards if record is not None and record.fail_type]
        graphs = sum(kind in (_TRACED, _BACKWARD) for kind, _ in self._done) - len(given_up)
        again = [r for r in forwards if r is not None and r.recompile_reason and not r.fail_type]
        breaks = graph_breaks()
        details = [f"{len(again)} recompiled: {_short(again[-1].recompile_reason)}"] if again else []
        if breaks > self._breaks:
            details.append(_count(breaks - self._breaks, "graph break"))
        if graphs:
            about = f" ({'; '.join(details)})" if details else ""
            self._log_line(f"{place}: compiled {_count(graphs, 'graph')}{about} in {self._seconds:.1f} s")
        self._done, self._seconds, self._breaks = [], 0.0, breaks
        for record in again:
            self._note(record)

    def _note(self, record: Any) -> None:
        """Warn, once, about a function that is compiled again and again."""
        name = f"{record.co_name} ({Path(record.co_filename).name}:{record.co_firstlineno})"
        self._again[name] += 1
        if self._again[name] <= _MOST_AGAIN or self._warned:
            return
        self._warned = True
        reason = _short(record.recompile_reason)
        if re.search("size|stride|shape|rank", reason):
            cure = (
                "for shapes that change: compile={'dynamic': True}, inputs that are padded to a few sizes, "
                "or drop_last=True in the DataLoader"
            )
        else:
            cure = "keep what changes in a tensor, or out of the compiled part"
        self._log_line(
            f"warning: torch.compile has compiled again {self._again[name]} times {name}, at last because: "
            f"{reason}; {cure} (TORCH_LOGS=recompiles lists every reason)"
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _short(reason: str) -> str:
    """torch's reason without the number of the graph, its hint and the spaces for alignment."""
    first = reason.split("\n")[0].partition("(HINT:")[0]
    return " ".join(re.sub(r"^\d+/\d+: ", "", first).split())[:_SHOWN]
