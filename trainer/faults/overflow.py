"""Updates that were skipped because scaled gradients overflowed: counted, logged, and too many an error."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import PacelineError
from ...strategies import Precision
from ..state import TrainState
from .nan_trace import Origin


class Overflows:
    """Looks at the loss scale after each step.

    Args:
        precision: Scales losses, and skips updates.
        state: Counts the skipped updates.
        log_line: Takes a line for the log.
    """

    def __init__(self, precision: Precision, state: TrainState, log_line: Callable[[str], None]) -> None:
        self._precision, self._state, self._log_line = precision, state, log_line
        self._seen = 0

    def values(self) -> dict[str, float]:
        """What a log point has of it."""
        return {
            "fp16/loss_scale": self._precision.loss_scale,
            "fp16/skipped_steps": float(self._state.overflowed_steps),
        }

    def look(self, find_origin: Callable[[], Origin] | None = None) -> None:
        """The step has ended. To be called on all ranks.

        Args:
            find_origin: Runs the step again, and finds where a number is not finite first.

        Raises:
            PacelineError: after ``max_consecutive_skips`` skipped updates in a row.
        """
        before, self._seen = self._seen, self._precision.skipped_in_a_row
        if self._seen <= before:
            return
        self._state.overflowed_steps += 1
        scale = self._precision.loss_scale
        self._log_line(
            f"{self._state.step_label}: gradients overflowed in float16, the update is skipped; "
            f"the loss scale is now {scale:.10g}"
        )
        if self._seen < self._precision.max_consecutive_skips:
            return
        origin = find_origin() if find_origin is not None else None
        where = "" if origin is None or origin.rank is None else f", rank {origin.rank}"
        raise PacelineError(
            f"{self._seen} updates in a row were skipped: gradients overflow in float16, and would at any "
            f"loss scale (it is {scale:.10g} now)",
            code="not-finite",
            where=f"{self._state.step_label}{where}",
            got="gradients that are not finite" if origin is None else origin.description,
            fix='precision="bf16" has the range of float32; or keep that part in float32 with '
            "torch.autocast(device_type, enabled=False); or a lower learning rate",
        )
