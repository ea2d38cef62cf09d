"""Compares the parameters of all ranks: replicas that drift apart end the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...common.argument_checks import DURATION, check_arguments
from ...durations import Cadence, Duration, StepPosition
from ..base import Callback

if TYPE_CHECKING:
    from ..trainer_view import TrainerView


class ReplicaCheck(Callback):
    """Compares the parameters over all ranks every so often; a difference ends the run.

    Every run on several ranks does so after its steps 1, 2, 4, 8 ... and before each checkpoint; this
    adds further steps. Every bit counts. A comparison reads each parameter once, where it lies, and
    sends two numbers for it. Parameters of which each rank has another part are skipped; where all
    of them are, a line in the log reports it. On one device it does nothing.

    Args:
        every: A duration: steps, epochs or time (rank 0's clock). Where ranks update a part of the
            parameters each and share the results, an update overwrites what was changed before it: there
            only ``every=1`` sees each change.

    Raises:
        PacelineError: on every rank, at the step that shows it. It names the first parameter that differs,
            in the module's order, the ranks that are not like most of them (else not like the first), and
            the last step after which all were equal.

    Example:
        >>> trainer = Trainer(callbacks=ReplicaCheck(every=100))
    """

    def __init__(self, every: Any = "1ep") -> None:
        check_arguments("ReplicaCheck", every=(every, DURATION))
        self.every = Duration.parse(every)
        self._cadence: Cadence | None = None
        self._compare: Callable[[int], None] | None = None

    def compare_with(self, compare: Callable[[int], None] | None) -> None:
        """Take what compares them after the given step; None: nothing has a copy. The Trainer calls it."""
        self._compare = compare

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._cadence = None
        if trainer.world_size == 1:
            return
        if self._compare is None:
            trainer.log_line(
                "ReplicaCheck compares nothing: every parameter is sharded, a part on each rank"
            )
            return
        self._cadence = Cadence(self.every, trainer.steps_per_epoch)
        self._cadence.restart(trainer.counters.seconds())

    def on_step_boundary(self, trainer: TrainerView) -> None:
        compare, cadence = self._compare, self._cadence
        if compare is not None and cadence is not None and trainer.counters.is_due(cadence):
            compare(trainer.global_step)

    def next_due(self, at: StepPosition) -> float:
        return math.inf if self._cadence is None else self._cadence.next_step(at)

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._compare = None
