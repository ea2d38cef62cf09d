"""The base of callbacks that write rows of metrics somewhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import PacelineError
from ..base import Callback
from .media import Media
from .series import POSITION

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class Logger(Callback):
    """A callback that also gets every row of reduced metrics, on rank 0 only.

    ``write`` is called in a thread, from a queue of 1000 rows: a slow server holds no step up. Where it
    raises, the run continues: the first error is reported, after 10 in a row the logger is switched off,
    and the rows that it did not get are counted when the run ends. Hooks are called in the main thread;
    ``on_fit_end`` and ``on_teardown`` when all rows are written, or after 10 seconds.

    A row has ``step``, ``epoch``, ``time`` (seconds) and ``samples``, ``tokens`` where ``training_step``
    returns weights (their sum so far, over all ranks), and values by full name.

    Attributes:
        background: False calls ``write`` and ``write_media`` in the main thread.
        shows: Of ``Image``, ``Histogram``, ``Table`` and ``Text`` those that ``write_media`` takes. What
            is logged of another kind is reported once and not written.

    Example:
        >>> class Printer(Logger):
        ...     def write(self, row):
        ...         print("step", row["step"])
        >>> run = Trainer(max_epochs=1, loggers=Printer(), progress=False).fit(Net(), train_loader)
        step 1
        step 4
    """

    background = True
    shows: tuple[type, ...] = ()

    @abstractmethod
    def write(self, row: dict[str, float]) -> None:
        """One row."""

    def write_media(self, row: dict[str, float], name: str, media: Media) -> None:
        """One image, histogram, table or text.

        Args:
            row: Where the run is: a row without values.
            name: The full name it was logged under.
            media: Of a kind in ``shows``.
        """
        raise NotImplementedError(f"{type(self).__name__} has write_media for each kind in shows")


def values_of(row: dict[str, float]) -> dict[str, Any]:
    """The values of a row, without where it belongs."""
    return {name: value for name, value in row.items() if name not in POSITION}


def guarded(owner: Any, name: str, hook: Callable[..., None]) -> Callable[..., None]:
    """A logger's hook that ends no run under way where it cannot write; a hook of others as it is.

    Args:
        owner: A callback or module.
        name: Of the hook. Before the first step, a logger that cannot write is an error.
        hook: Called with the trainer first.
    """
    if not isinstance(owner, Logger):
        return hook
    who = type(owner).__name__

    def call(trainer: TrainerView, *args: Any) -> None:
        try:
            hook(trainer, *args)
        except OSError as error:
            if name in ("on_setup", "on_fit_start"):
                raise PacelineError(
                    f"{who} cannot write",
                    code="cannot-write",
                    where=str(error.filename or trainer.folder),
                    got=str(error),
                    fix="make room there, or get the right to write there; loggers=... leaves a logger out",
                ) from error
            trainer.log_line(f"warning: {who} could not write in {name}, and the run continues: {error}")

    return call
