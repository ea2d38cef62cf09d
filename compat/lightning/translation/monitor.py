"""A watched value by Lightning's name, which means one of ours once it was logged."""

from __future__ import annotations

from typing import Any, TypeVar

from ....errors import PacelineError, nearest

W = TypeVar("W", bound="LazyMonitor")


class LazyMonitor:
    """In front of ``EarlyStopping`` or ``Checkpoint``: looks the full name up when it is asked for."""

    _monitor: Any
    watched = ""
    _run: Any = None

    @property
    def monitor(self) -> Any:
        """The full name; None while nothing was logged under the user's."""
        if not self.watched:
            return self._monitor.name if self._monitor else None
        session = self._run.session
        full: str | None = None if session is None else session.values.full_name(self.watched)
        if full is not None:
            self._monitor.name = full
        return full

    def known(self, strict: bool = True) -> str | None:
        """The full name, at the end of an epoch or validation.

        Raises:
            PacelineError: where nothing was logged under the user's name, validations included.
        """
        full: str | None = self.monitor
        if full is None and strict and self._run.session.has_validated:
            raise PacelineError(
                f"{type(self).__name__} watches {self.watched!r}, which was not logged",
                got=f"logged: {', '.join(self._run.session.values.names) or 'nothing'}",
                meant=nearest(self.watched, self._run.session.values.names),
            )
        return full

    def state_dict(self) -> dict[str, Any]:
        """What was watched, by the user's name."""
        state: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        return state | ({"watched": [self.watched, self._monitor.mode]} if self.watched else {})

    def on_validation_end(self, trainer: Any) -> None:
        """Look at the value, once it has a name."""
        if self.monitor is not None:
            super().on_validation_end(trainer)  # type: ignore[misc]

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Look at the value, once it has a name."""
        if not self.watched or self.known() is not None:
            super().on_train_epoch_end(trainer)  # type: ignore[misc]


def state_name(kind: str, *parts: Any) -> str:
    """The key of a callback's state: its kind and what it watches."""
    return "-".join([kind, *(str(part) for part in parts if part is not None)]).replace("/", ".")


def lazy_monitor(watcher: W, name: str, trainer: Any) -> W:
    """The same, watching ``name`` of what ``trainer`` runs."""
    watcher.watched, watcher._run = name, trainer
    return watcher
