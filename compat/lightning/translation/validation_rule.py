"""When Lightning validates: ``val_check_interval`` in batches and ``check_val_every_n_epoch``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .... import PacelineError


@dataclass(frozen=True)
class ValidationRule:
    """Counts batches as Lightning does: micro-batches, from the start of each epoch.

    Args:
        interval: Batches (int), or a part of an epoch (float).
        every_n_epoch: Only in every so many epochs; None counts batches over the whole run.
    """

    interval: int | float
    every_n_epoch: int | None

    @property
    def is_plain(self) -> bool:
        """Whether it is the end of each n-th epoch, which our loop has itself."""
        return isinstance(self.interval, float) and self.interval == 1.0 and self.every_n_epoch is not None

    def batches(self, in_epoch: int | None) -> int | None:
        """Batches between two validations; None where only the end of an epoch counts.

        Args:
            in_epoch: The batches of an epoch; None where that is unknown.

        Raises:
            PacelineError: for a part of an epoch without a known length.
        """
        if isinstance(self.interval, int):
            return self.interval
        if in_epoch is None:
            if self.interval == 1.0:
                return None
            raise PacelineError(
                f"val_check_interval={self.interval} is a part of an epoch, but the training data has no "
                "length",
                fix="a number of batches: val_check_interval=500",
            )
        return max(1, int(in_epoch * self.interval))

    def check(self, in_epoch: int | None, accumulate: int) -> None:
        """See that each validation follows an optimizer step.

        Raises:
            PacelineError: where one would fall between two micro-batches, and where none would come.
        """
        batches = self.batches(in_epoch)
        if batches is None:
            return
        in_epochs = isinstance(self.interval, int) and self.every_n_epoch is not None
        if in_epochs and in_epoch is not None and batches > in_epoch:
            raise PacelineError(
                f"val_check_interval={self.interval} is more than the {in_epoch} batches of an epoch",
                fix="check_val_every_n_epoch=None counts batches over the whole run",
            )
        if batches % accumulate and batches != in_epoch:
            below, above = batches // accumulate * accumulate, -(-batches // accumulate) * accumulate
            raise PacelineError(
                "a validation would fall between two micro-batches of an optimizer step",
                got=f"every {batches} batches, with accumulate_grad_batches={accumulate}",
                fix=f"val_check_interval={above}" + (f" or {below}" if below else ""),
            )

    def due(self, batch: int, total: int, epoch: int, is_last: bool, in_epoch: int | None) -> bool:
        """Whether a validation follows this batch.

        Args:
            batch: Its number in the epoch, from 1.
            total: Its number in the run, from 1.
            epoch: The epoch, from 0.
            is_last: Whether it is the epoch's last.
            in_epoch: The batches of an epoch; None where that is unknown.
        """
        if self.every_n_epoch is not None and (epoch + 1) % self.every_n_epoch:
            return False
        every: Any = self.batches(in_epoch)
        if every is None:
            return is_last
        if isinstance(self.interval, float) and self.interval == 1.0 and is_last:
            return True
        count = total if self.every_n_epoch is None else batch
        return bool(count % every == 0)
