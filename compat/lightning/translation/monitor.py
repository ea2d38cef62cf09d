"""A watched value by the name that Lightning code logged it under."""

from __future__ import annotations

from typing import Any, TypeVar

from ....errors import PacelineError, nearest
from .copies import state_without

W = TypeVar("W", bound="NamedMonitor")


class NamedMonitor:
    """In front of ``Checkpoint``, which watches a value of ``callback_metrics`` then."""

    _monitor: Any
    watched = ""
    _run: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: not the trainer."""
        return state_without(self, "_run")

    @property
    def monitor(self) -> Any:
        """The run's name for it; None while nothing was logged under the user's.

        None in a sanity check too: its values may have other names than those of validations.
        """
        if not self.watched:
            return self._monitor.name if self._monitor else None
        session = self._run.session
        if session is None or not session.ours.global_step:
            return None
        return session.values.full_name(self.watched)

    def with_value(self, trainer: Any, strict: bool = True) -> NotingTrainer | None:
        """The trainer, which answers with the watched value; None where there is none yet.

        Raises:
            PacelineError: where nothing was logged under the user's name, validations included.
        """
        session = self._run.session
        value = trainer.ranks.on_rank_zero(lambda: _number(session.values.callback().get(self.watched)))
        if value is not None:
            return NotingTrainer(trainer, value)
        if strict and session.has_validated:
            raise PacelineError(
                f"{type(self).__name__} watches {self.watched!r}, which was not logged",
                code="metric-not-logged",
                got=f"logged: {', '.join(session.values.names) or 'nothing'}",
                meant=nearest(self.watched, session.values.names),
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        """What was watched, by the user's name."""
        state: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        return state | ({"watched": [self.watched, self._monitor.mode]} if self.watched else {})


class NotingTrainer:
    """Our trainer, for a callback that judges by a value of ``callback_metrics``.

    Args:
        trainer: Our trainer.
        value: Rank 0's, where ranks have logged a step's own.
    """

    def __init__(self, trainer: Any, value: float) -> None:
        self._trainer, self.value = trainer, value

    def require_metric(self, name: str, where: str) -> float:
        """The value."""
        return self.value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def state_name(kind: str, *parts: Any) -> str:
    """The key of a callback's state: its kind and what it watches."""
    return "-".join([kind, *(str(part) for part in parts if part is not None)]).replace("/", ".")


def named_monitor(watcher: W, name: str, trainer: Any) -> W:
    """The same, watching ``name`` of what ``trainer`` runs."""
    watcher.watched, watcher._run = name, trainer
    return watcher
