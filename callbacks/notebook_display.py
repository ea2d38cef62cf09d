"""The progress of a run in a notebook: one display that is updated in its place."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

_ROWS = 30  # of the table; each update sends all of it


class NotebookDisplay:
    """A bar, a line of values, and a table of validations that grows row by row.

    It is HTML without a script, and plain text for readers that show none, so it stays readable in a
    notebook that was saved; no widgets are needed.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._rows: list[tuple[str, dict[str, float]]] = []
        self._earlier = 0

    @staticmethod
    def is_possible() -> bool:
        """Whether this process is the kernel of a notebook, or was forked from one."""
        ipython = sys.modules.get("IPython")  # where it was never imported there is no kernel
        shell = None if ipython is None else ipython.get_ipython()
        return getattr(shell, "kernel", None) is not None

    def add_row(self, place: str, values: dict[str, float]) -> None:
        """Append the results of a validation to the table; ``show`` draws it.

        Args:
            place: Where the run is, for the first column.
            values: Results by name.
        """
        self._rows.append((place, values))
        if len(self._rows) > _ROWS:
            del self._rows[0]
            self._earlier += 1

    def show(self, step: int, total: int | None, line: str) -> None:
        """Draw the display, or draw it again.

        Args:
            step: Optimizer steps done.
            total: Of how many; None where that is unknown: then there is no bar.
            line: What is said below the bar.
        """
        from IPython.display import display

        content = {"text/html": self._html(step, total, line), "text/plain": self._text(line)}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def _text(self, line: str) -> str:
        rows = [f"{place}: {_joined(values)}" for place, values in self._rows]
        return "\n".join([*self._note(), *rows, line])

    def _html(self, step: int, total: int | None, line: str) -> str:
        bar = ""
        if total:
            bar = f'<progress value="{step}" max="{total}" style="width:100%;max-width:40em"></progress>'
        return f"<div>{bar}<div>{escape(line)}</div>{self._table()}</div>"

    def _table(self) -> str:
        if not self._rows:
            return ""
        names = list(dict.fromkeys(name for _, values in self._rows for name in values))
        head = "".join(f"<th>{escape(name)}</th>" for name in ["", *names])
        body = "".join(
            f"<tr><td>{escape(place)}</td>"
            + "".join(f"<td>{shown(values[n]) if n in values else ''}</td>" for n in names)
            + "</tr>"
            for place, values in self._rows
        )
        note = "".join(f"<small>{text}</small>" for text in self._note())
        return f"<table><tr>{head}</tr>{body}</table>{note}"

    def _note(self) -> list[str]:
        return [f"and {self._earlier} earlier validations, which are in log.txt"] if self._earlier else []


def shown(value: Any) -> str:
    """A value with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))


def _joined(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {shown(value)}" for name, value in values.items())
