"""When Lightning validates: ``val_check_interval`` in batches and ``check_val_every_n_epoch``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .... import PacelineError
from ....durations import Duration

_NEVER = 10**9
"""Epochs that no run has."""


@dataclass(frozen=True)
class ValidationRule:
    """Counts batches as Lightning does: micro-batches, from the start of each epoch.

    Args:
        interval: Batches (int), a part of an epoch (float), or a time.
        every_n_epoch: Only in every so many epochs; None counts batches over the whole run.
    """

    interval: int | float | timedelta
    every_n_epoch: int | None

    @property
    def validate_every(self) -> str | None:
        """The duration by which our loop validates by itself; None where it does not."""
        if isinstance(self.interval, timedelta):
            return f"{self.interval.total_seconds()}s"
        is_end = isinstance(self.interval, float) and self.interval == 1.0
        if not is_end or self.every_n_epoch is None:
            return None
        return f"{min(self.every_n_epoch, _NEVER)}ep"

    def batches(self, in_epoch: int | None) -> int | None:
        """Batches between two validations; None where only the end of an epoch counts.

        Args:
            in_epoch: The batches of an epoch; None where that is unknown.

        Raises:
            PacelineError: for a part of an epoch without a known length.
        """
        if isinstance(self.interval, timedelta):
            return None
        if isinstance(self.interval, int):
            return self.interval
        if in_epoch is None:
            if self.interval == 1.0:
                return None
            raise PacelineError(
                f"val_check_interval={self.interval} is a part of an epoch, but the training data has no "
                "length",
                code="run-length-unknown",
                fix="a number of batches: val_check_interval=500",
            )
        return max(1, int(in_epoch * self.interval))

    def lines(self, in_epoch: int | None, accumulate: int) -> list[str]:
        """What the user is to know of it, when the fit begins.

        Args:
            in_epoch: The batches of an epoch; None where that is unknown.
            accumulate: Batches in an optimizer step.

        Raises:
            PacelineError: where no validation would come.
        """
        batches = self.batches(in_epoch)
        if batches is None:
            return []
        in_epochs = isinstance(self.interval, int) and self.every_n_epoch is not None
        if in_epochs and in_epoch is not None and batches > in_epoch:
            raise PacelineError(
                f"val_check_interval={self.interval} is more than the {in_epoch} batches of an epoch",
                code="invalid-value",
                fix="check_val_every_n_epoch=None counts batches over the whole run",
            )
        lines = []
        if isinstance(self.interval, float) and self.interval < 1:
            lines = [f"val_check_interval={self.interval} of {in_epoch} batches: every {batches}"]
        if batches % accumulate and batches != in_epoch:
            lines.append(
                f"validates every {batches} batches, and an optimizer step has {accumulate}: what is due "
                "within a step comes before it, with the same weights"
            )
        return lines

    def due(
        self, batch: int, total: int, epoch: int, is_last: bool, in_epoch: int | None, accumulate: int = 1
    ) -> bool:
        """Whether a validation follows the optimizer step that has just been made.

        One that Lightning makes within a step comes before it, with the same weights; in the first step of
        an epoch, after it.

        Args:
            batch: The number of its last batch in the epoch, from 1.
            total: That number in the run, from 1.
            epoch: The epoch, from 0.
            is_last: Whether it is the epoch's last step.
            in_epoch: The batches of an epoch; None where that is unknown.
            accumulate: Batches in a step.
        """
        if self.every_n_epoch is not None and (epoch + 1) % self.every_n_epoch:
            return False
        every = self.batches(in_epoch)
        if every is None:
            return is_last
        if isinstance(self.interval, float) and self.interval == 1.0 and is_last:
            return True
        first = 1 if batch <= accumulate else batch
        last = batch if is_last else batch + accumulate - 1
        if in_epoch is not None:  # the last step may be shorter, and what is due at its end follows it
            last = min(last, max(batch, in_epoch - 1))
        before = 0 if self.every_n_epoch is not None else total - batch
        return (last + before) // every > (first - 1 + before) // every


def interval_of(given: Any) -> int | float | timedelta:
    """``val_check_interval`` as a number or a time.

    Args:
        given: As ``Trainer`` takes it: batches, a part of an epoch, ``"DD:HH:MM:SS"``, a timedelta or its
            arguments; None is an epoch.

    Raises:
        PacelineError: for what is none of them.
    """
    if given is None:
        return 1.0
    if isinstance(given, Mapping):
        return timedelta(**given)
    if isinstance(given, str) and ":" in given:
        return timedelta(seconds=float(Duration.parse(given, where="val_check_interval").amount))
    if isinstance(given, timedelta) or (isinstance(given, int) and given > 0):
        return given
    if isinstance(given, float) and 0 <= given <= 1:
        return given
    raise PacelineError(
        "val_check_interval is a number of batches (int), a part of an epoch (float), or a time "
        '("00:01:30:00", a timedelta)',
        code="invalid-duration",
        got=f"val_check_interval={given!r}",
    )
