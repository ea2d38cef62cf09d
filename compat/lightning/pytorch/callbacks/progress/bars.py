"""Progress bars under Lightning's names."""

from __future__ import annotations

from typing import Any

from ...... import callbacks as ours
from ..callback import Callback
from ..overrides import explain_overrides


class _Bar(ours.Progress):
    """Ours, with the values that the user's ``get_metrics`` gives."""

    def __init__(self, theirs: Any, trainer: Any) -> None:
        super().__init__()
        self._theirs, self._run = theirs, trainer

    def values(self, trainer: Any) -> dict[str, Any]:
        return dict(self._theirs.get_metrics(self._run, self._run.lightning_module))


class ProgressBar(Callback):
    """What both have in common: ``isinstance(callback, ProgressBar)``."""

    refresh_rate: int
    _enabled = True

    @property
    def trainer(self) -> Any:
        """The trainer that shows it.

        Raises:
            RuntimeError: before one does.
        """
        if self._paceline_session is None:
            raise RuntimeError(f"{type(self).__name__} is not attached to a `Trainer`.")
        return self._paceline_session.trainer

    @property
    def is_enabled(self) -> bool:
        """Whether a subclass that draws is to draw; ours is drawn where ``refresh_rate`` says so."""
        return bool(self._enabled and self.refresh_rate)

    @property
    def is_disabled(self) -> bool:
        """The contrary."""
        return not self.is_enabled

    def enable(self) -> None:
        """Let ``is_enabled`` be true."""
        self._enabled = True

    def disable(self) -> None:
        """Let it be false."""
        self._enabled = False

    def print(self, *values: Any, **options: Any) -> None:
        """A line beside the bar."""
        self.trainer.print(*values)

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        """The values on the bar: override it to show others."""
        return {"v_num": 0, **get_standard_metrics(trainer), **trainer.progress_bar_metrics}

    def ours(self, trainer: Any) -> list[Any]:
        explain_overrides(self, ProgressBar, trainer)
        if not self.refresh_rate:
            return []
        chooses = type(self).get_metrics is not ProgressBar.get_metrics
        return [_Bar(self, trainer) if chooses else ours.Progress()]


def get_standard_metrics(trainer: Any) -> dict[str, Any]:
    """What a bar shows beside logged values: the version of the first logger."""
    return {"v_num": trainer.loggers[0].version} if trainer.loggers else {}


class TQDMProgressBar(ProgressBar):
    """The progress bar; its look is ours.

    Args:
        refresh_rate: 0 shows none.
        process_position: Accepted.
        leave: Accepted.
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        self.refresh_rate, self.process_position = refresh_rate, process_position


class RichProgressBar(ProgressBar):
    """The progress bar; its look is ours.

    Args:
        refresh_rate: 0 shows none.
        leave: Accepted.
        theme: Accepted.
        console_kwargs: Accepted.
    """

    def __init__(
        self, refresh_rate: int = 1, leave: bool = False, theme: Any = None, console_kwargs: Any = None
    ) -> None:
        self.refresh_rate = refresh_rate


class RichProgressBarTheme:
    """Accepted: the look of the bar is ours.

    Args:
        **styles: By the part's name.
    """

    def __init__(self, **styles: Any) -> None:
        self.styles = styles
