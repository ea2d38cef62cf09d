"""``EarlyStopping`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..... import callbacks as ours
from ...translation.monitor import NamedMonitor, named_monitor, state_name
from .callback import Callback
from .overrides import refuse_overrides


class _Stopping(NamedMonitor, ours.EarlyStopping):
    """Ours, which looks when the hooks of the user's callback say so."""

    strict = True
    stopped_epoch = 0

    def on_validation_end(self, trainer: Any) -> None:
        """Wait for the hook of Lightning's name."""

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Wait for the hook of Lightning's name."""

    def look(self, trainer: Any) -> None:
        """Look at the value."""
        noting, best = self.with_value(trainer, self.strict), self.best
        if noting is None:
            return
        self._look(noting)  # type: ignore[arg-type]
        if noting.stopped:
            self.best = best  # which a value that reaches stopping_threshold is not, to Lightning
            self.stopped_epoch = trainer.epoch


_Stopping.__name__ = "EarlyStopping"


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
        check_on_train_epoch_end: Look after each epoch instead of after each validation; None: where a
            validation is part of each epoch's end.
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
        self.monitor, self.mode, self._patience = monitor, mode, patience
        self._check_on_train_epoch_end = check_on_train_epoch_end
        self._made = _Stopping(
            monitor,
            mode,
            max(patience, 1),  # 0 and 1 both end at the first value that is no better
            min_delta,
            check_finite=check_finite,
            stopping_threshold=stopping_threshold,
            divergence_threshold=divergence_threshold,
            name=state_name("EarlyStopping", monitor),
        )
        self._made.strict = strict

    monitors = True

    def ours(self, trainer: Any) -> list[Any]:
        refuse_overrides(self, EarlyStopping)
        return [named_monitor(self._made, self.monitor, trainer)]

    def _after_epochs(self, trainer: Any) -> bool:
        given = self._check_on_train_epoch_end
        at_each_end = trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch == 1
        return at_each_end if given is None else given

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the value, where it is one of validations; a subclass that skips this does not."""
        if trainer.ours.loop.is_fit_validation and not self._after_epochs(trainer):
            self._made.look(trainer.ours)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look at the value; a subclass that skips this does not."""
        if self._after_epochs(trainer):
            self._made.look(trainer.ours)

    @property
    def patience(self) -> int:
        """Validations without a better value until the run stops."""
        return self._patience

    @patience.setter
    def patience(self, value: int) -> None:
        self._patience, self._made.patience = value, max(value, 1)

    @property
    def state_key(self) -> str:
        return self._generate_state_key(monitor=self.monitor, mode=self.mode)

    def state_dict(self) -> dict[str, Any]:
        """What Lightning's holds; a run resumes from what the trainer keeps of it."""
        names = ("wait_count", "stopped_epoch", "best_score", "patience")
        return {name: getattr(self, name) for name in names}

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
