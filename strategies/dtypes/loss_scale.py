"""The dynamic loss scale of float16: when it falls, when it grows, and how often an update was skipped."""

from __future__ import annotations

from typing import Any

from ...common.argument_checks import ABOVE_ONE, ABOVE_ZERO, COUNT, INSIDE_ONE, check_arguments

_LARGEST = 2.0**127  # the scale itself must be finite in float32


class LossScale:
    """What losses are multiplied by, so that small gradients are not zero in float16.

    After a step with a gradient that is not finite the scale is multiplied by ``backoff_factor``; after
    ``growth_interval`` finite steps in a row by ``growth_factor``. (Micikevicius et al., "Mixed Precision
    Training", 2018, section 3.2; the rule and the defaults of ``torch.amp.GradScaler``, whose saved state
    can be loaded.)

    Args:
        init_scale: The scale of the first step.
        growth_factor: Above 1.
        backoff_factor: Between 0 and 1.
        growth_interval: Finite steps in a row.

    Attributes:
        value: The scale of the current step.
        skipped_in_a_row: The updates skipped since the last finite one.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> scale = LossScale(init_scale=8.0)
        >>> scale.update(overflowed=True)
        >>> scale.value, scale.skipped_in_a_row
        (4.0, 1)
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        check_arguments(
            "AutocastFP16",
            init_scale=(init_scale, ABOVE_ZERO),
            growth_factor=(growth_factor, ABOVE_ONE),
            backoff_factor=(backoff_factor, INSIDE_ONE),
            growth_interval=(growth_interval, COUNT),
        )
        self.init_scale, self.growth_factor = init_scale, growth_factor
        self.backoff_factor, self.growth_interval = backoff_factor, growth_interval
        self.restart()

    def restart(self) -> None:
        """A run begins."""
        self.value = float(self.init_scale)
        self.skipped_in_a_row = self._finite_in_a_row = 0

    def update(self, overflowed: bool) -> None:
        """A step has ended.

        Args:
            overflowed: Whether one of its gradients was not finite, and its update was skipped.
        """
        if overflowed:
            self.value *= self.backoff_factor
            self.skipped_in_a_row += 1
            self._finite_in_a_row = 0
            return
        self.skipped_in_a_row = 0
        self._finite_in_a_row += 1
        if self._finite_in_a_row == self.growth_interval:
            grown = self.value * self.growth_factor
            self.value = grown if grown <= _LARGEST else self.value
            self._finite_in_a_row = 0

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "scale": self.value,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "growth_tracker": self._finite_in_a_row,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back the scale and its counts; the factors stay those that were given."""
        named = {name.lstrip("_"): value for name, value in state.items()}  # torch's have an underscore
        self.value = float(named["scale"])
        self._finite_in_a_row = int(named["growth_tracker"])
        self.skipped_in_a_row = int(named.get("skipped_in_a_row", 0))
