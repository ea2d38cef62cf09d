"""Values of single batches of an evaluation: ``self.log(..., on_step=True)`` in a validation or test."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


def with_end(key: str, end: str) -> str:
    """A name with ``_step`` or ``_epoch`` where Lightning puts it: before the dataloader.

    Example:
        >>> with_end("loss", "_step"), with_end("loss/dataloader_idx_0", "_epoch")
        ('loss_step', 'loss_epoch/dataloader_idx_0')
    """
    name, mark, number = key.partition("/dataloader_idx_")
    return f"{name}{end}{mark}{number}"


@dataclass
class _Value:
    latest: Tensor
    loader: str
    shown: bool
    logged: bool
    evaluation: int


class EvaluationSteps:
    """The latest of them by name, which stay until the next stage; and the row of a batch."""

    def __init__(self) -> None:
        self._values: dict[str, _Value] = {}
        self._evaluation = 0

    def clear(self) -> None:
        """A stage begins, or the sanity check is over."""
        self._values.clear()

    def begin(self) -> None:
        """An evaluation begins: rows have what is logged from here on."""
        self._evaluation += 1

    def note(self, name: str, value: Tensor, loader: str, shown: bool, logged: bool) -> None:
        """A batch has logged a value."""
        self._values[name] = _Value(value, loader, shown, logged, self._evaluation)

    def row(self, loader: str) -> dict[str, float]:
        """What goes to the loggers after a batch of a dataloader."""
        return {
            name: float(one.latest)
            for name, one in self._values.items()
            if one.logged and one.loader == loader and one.evaluation == self._evaluation
        }

    def logged(self) -> dict[str, Tensor]:
        """Those of ``trainer.logged_metrics``."""
        return {name: one.latest for name, one in self._values.items() if one.logged}

    def shown(self) -> dict[str, float]:
        """Those of the progress bar."""
        return {name: float(one.latest) for name, one in self._values.items() if one.shown}
