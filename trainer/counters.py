"""How far a run is, besides its steps and epochs: ``trainer.counters``."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..durations import Cadence
    from .faults.stop_agreement import StopController
    from .state import Limits, TrainState


class RunCounters:
    """Samples, skipped steps and time; ``paceline.callbacks.CountersView`` promises it.

    Args:
        state: The counters that a checkpoint writes.
        limits: How long epochs are.
        stop: Has the clock that ranks agreed on.
    """

    def __init__(self, state: TrainState, limits: Limits, stop: StopController) -> None:
        self._state, self._limits, self._stop = state, limits, stop

    @property
    def samples(self) -> int:
        """Samples trained on over the whole run, all ranks."""
        return self._state.samples

    @property
    def samples_in_epoch(self) -> int:
        """Samples of the current epoch that finished steps have used; 0 at its end."""
        return self._state.position

    @property
    def skipped_steps(self) -> int:
        """Steps without an update.

        A loss or gradient was not finite, scaled gradients overflowed (``precision="fp16"``), or there was
        no loss (None).
        """
        state = self._state
        return state.skipped_steps + state.overflowed_steps + state.steps_without_loss

    def seconds(self) -> float:
        """Seconds of training, the same on all ranks: rank 0's clock, as of the last agreement.

        Example:
            >>> trainer.counters.seconds() > 0
            True
        """
        return self._stop.seconds()

    def elapsed(self, unit: str) -> Fraction | float:
        """How much of the run is done, in a unit of durations; the same on all ranks at step boundaries.

        Args:
            unit: ``"st"`` optimizer steps, ``"ep"`` epochs and parts of one where its length is known,
                ``"s"`` seconds of training.

        Example:
            >>> trainer.counters.elapsed("st"), trainer.counters.elapsed("ep")
            (4, Fraction(1, 1))
        """
        state = self._state
        if unit == "s":
            return self.seconds()
        if unit == "st":
            return state.global_step
        length = self._limits.steps_in(state.epoch)
        return state.epoch + Fraction(state.global_step - state.epoch_start, length or 1) * bool(length)

    def is_due(self, cadence: Cadence) -> bool:
        """Whether a cadence falls on this step boundary; for ``on_step_boundary``.

        Example:
            >>> from paceline.durations import Cadence, Duration
            >>> trainer.global_step, trainer.counters.is_due(Cadence(Duration.parse("2st"), None))
            (4, True)
        """
        return cadence.due(self._state.at_boundary(self._limits), self.seconds)
