"""``EarlyStopping`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..... import callbacks as ours
from ...translation.monitor import LazyMonitor, lazy_monitor, state_name
from .callback import Callback


class _Ours(LazyMonitor, ours.EarlyStopping):
    """Ours, which watches a value by Lightning's name for it."""

    strict = True
    stopped_epoch = 0

    def _look(self, trainer: Any) -> None:
        if self.strict or self._monitor.name in trainer.metrics:
            noting = _Noting(trainer)
            super()._look(noting)
            self.stopped_epoch = trainer.epoch if noting.stopped else self.stopped_epoch


class _Noting:
    """A trainer that remembers whether it was asked to stop."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.stopped = trainer, False

    def stop(self, why: str) -> None:
        """Ask the run to end."""
        self.stopped = True
        self._trainer.stop(why)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


class EarlyStopping(Callback):
    """Stops when a value no longer gets better.

    Args:
        monitor: The value's name, as it was logged.
        min_delta: What counts as better is better by more than this.
        patience: Validations without a better value.
        verbose: Accepted: the reason for a stop is always a line.
        mode: ``"min"`` or ``"max"``.
        strict: That the value is missing is an error.
        check_finite: Stop when the value is NaN or infinite.
        stopping_threshold: Stop when the value is as good as this.
        divergence_threshold: Stop when the value is worse than this.
        check_on_train_epoch_end: Accepted: a value is looked at when it is new.
        log_rank_zero_only: Accepted: lines are rank 0's.
    """

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        self.monitor, self.mode = monitor, mode
        self._made = _Ours(
            monitor,
            mode,
            patience,
            min_delta,
            check_finite=check_finite,
            stopping_threshold=stopping_threshold,
            divergence_threshold=divergence_threshold,
            name=state_name("EarlyStopping", monitor),
        )
        self._made.strict = strict

    def ours(self, trainer: Any) -> list[Any]:
        return [lazy_monitor(self._made, self.monitor, trainer)]

    @property
    def patience(self) -> int:
        """Validations without a better value until the run stops."""
        return self._made.patience

    @patience.setter
    def patience(self, value: int) -> None:
        self._made.patience = value

    @property
    def min_delta(self) -> float:
        """What counts as better is better by more than this."""
        return self._made.min_delta

    @property
    def wait_count(self) -> int:
        """Validations since the best value."""
        return self._made.wait

    @property
    def best_score(self) -> Tensor:
        """The best value so far."""
        worst = torch.inf if self.mode == "min" else -torch.inf
        return torch.tensor(worst if self._made.best is None else self._made.best)

    @property
    def stopped_epoch(self) -> int:
        """The epoch at which it stopped the run; 0 where it did not."""
        return self._made.stopped_epoch
