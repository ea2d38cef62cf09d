"""The base of callbacks that write rows of metrics somewhere."""

from __future__ import annotations

from abc import abstractmethod

from .base import Callback

POSITION = ("step", "epoch", "time", "samples", "tokens")  # the keys of a row that say where it belongs


class Logger(Callback):
    """A callback that also gets every row of reduced metrics, on rank 0 only.

    ``write`` is called in a thread, from a queue of 1000 rows: a slow server holds no step up. Where it
    raises, the run continues: the first error is reported, after 10 in a row the logger is switched off,
    and the rows that it did not get are counted when the run ends. Hooks are called in the main thread;
    ``on_fit_end`` and ``on_teardown`` when all rows are written, or after 10 seconds.

    Attributes:
        background: False calls ``write`` in the main thread.

    Example:
        >>> class Printer(Logger):
        ...     def write(self, row):
        ...         print("step", row["step"])
        >>> run = Trainer(max_epochs=1, loggers=Printer(), progress=False).fit(Net(), train_loader)
        step 1
        step 4
    """

    background = True

    @abstractmethod
    def write(self, row: dict[str, float]) -> None:
        """One row: ``step``, ``epoch``, ``time`` (seconds), ``samples``, and values by full name."""
