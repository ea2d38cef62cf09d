"""The base of callbacks that write rows of metrics somewhere."""

from __future__ import annotations

from abc import abstractmethod

from .base import Callback


class Logger(Callback):
    """A callback that also gets every row of reduced metrics, on rank 0 only.

    Example:
        >>> class Printer(Logger):
        ...     def write(self, row):
        ...         print("step", row["step"])
        >>> run = Trainer(max_epochs=1, loggers=Printer(), progress=False).fit(Net(), train_loader)
        step 1
        step 4
    """

    @abstractmethod
    def write(self, row: dict[str, float]) -> None:
        """One row: ``step``, ``epoch``, ``time`` (seconds), ``samples``, and values by full name."""
