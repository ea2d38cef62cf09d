"""The base of schedules that give an epoch's steps another size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import PacelineError
from ..base import Callback


class EpochSchedule(Callback):
    """A count that gives the steps of an epoch their size, from each epoch that is named on. No hooks.

    Args:
        scheduling: Counts by epoch, from 0.

    Attributes:
        counted: What is counted, for errors.
        excludes: Arguments of the Trainer that say the same, with their defaults.

    Raises:
        PacelineError: for anything else.
    """

    counted: ClassVar[str]
    excludes: ClassVar[dict[str, Any]] = {}

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        if not isinstance(scheduling, Mapping) or not scheduling or not _counts(scheduling):
            raise PacelineError(
                f"{type(self).__name__} takes {self.counted} by epoch",
                code="invalid-value",
                got=scheduling,
                allowed="epochs from 0 with counts of at least 1, such as {0: 1, 5: 4}",
            )
        self.scheduling = dict(sorted(scheduling.items()))

    def at(self, epoch: int) -> int | None:
        """The count of an epoch; None before the first one that is named.

        Args:
            epoch: From 0.
        """
        return next((n for first, n in reversed(self.scheduling.items()) if first <= epoch), None)


def _counts(scheduling: Mapping[Any, Any]) -> bool:
    numbers = [*scheduling, *scheduling.values()]
    return all(type(n) is int for n in numbers) and min(scheduling) >= 0 < min(scheduling.values())
