"""The base of schedules: a warm-up, and torch's scheduler that they become."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from ..common.argument_checks import PART, check_arguments
from .run_length import RunLength

if TYPE_CHECKING:
    from torch.optim import Optimizer


class RateLR(LambdaLR):
    """Torch's ``LambdaLR``; a run that resumes has the rates of its new length at once.

    Example:
        >>> optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
        >>> RateLR(optimizer, lambda step: 1 / (1 + step)).get_last_lr()
        [0.1]
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave, and set the rates of its step."""
        super().load_state_dict(state_dict)
        for group, rate, factor in zip(
            self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True
        ):
            value = rate * factor(self.last_epoch)
            if isinstance(group["lr"], Tensor):  # which an optimizer may hold on to
                group["lr"].fill_(value)
            else:
                group["lr"] = value


@dataclass(frozen=True, kw_only=True)
class RateSchedule(ABC):
    """The base of schedules: a factor for each step, with which all rates are multiplied.

    With a warm-up of n steps, step k of them (from 0) has the factor (k + 1) / (n + 1).

    Args:
        warmup: A duration or a part of the run; 0 for none.
        warmup_start: The factor of the first step of the warm-up, from where it rises evenly to 1.
            0 is what the schedules of transformers do. None: 1 / (n + 1).

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> class Inverse(RateSchedule):
        ...     def after_warmup(self, step, steps, length):
        ...         return 1 / (1 + step)
        >>> [Inverse(warmup=1).factor(step, RunLength(4)) for step in range(4)]
        [0.5, 1.0, 0.5, 0.3333333333333333]
    """

    warmup: Any = 0
    warmup_start: float | None = None

    def __post_init__(self) -> None:
        self._check("warmup")

    def _check(self, *durations: str, **others: Any) -> None:
        name = type(self).__name__
        for one in durations:
            value = getattr(self, one)
            if not (type(value) is int and value == 0):
                RunLength(100, 100).amount(value, f"{name}: {one}")
        if self.warmup_start is not None:
            others["warmup_start"] = (self.warmup_start, PART)
        check_arguments(name, **others)

    @abstractmethod
    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        """The factor of a step after the warm-up.

        Args:
            step: From 0, the first one after it.
            steps: All steps of the run after it.
            length: Of the whole run.
        """

    def factor(self, step: int, length: RunLength) -> float:
        """The factor of a step of the run, from 0.

        Example:
            >>> [Linear(warmup=1).factor(step, RunLength(5)) for step in range(6)]
            [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
        """
        warmup = length.amount(self.warmup, "warmup") if self.warmup else 0
        if step < warmup:
            start = self.warmup_start
            return (step + 1) / (warmup + 1) if start is None else start + (1 - start) * step / warmup
        return self.after_warmup(step - warmup, self._steps(length) - warmup, length)

    def _steps(self, length: RunLength) -> int:
        return length.total(f"{type(self).__name__}()")

    def build(self, optimizer: Optimizer, length: RunLength) -> RateLR:
        """The scheduler, to be stepped after each optimizer step.

        Raises:
            PacelineError: where a length is unknown that it needs.
        """
        return RateLR(optimizer, lambda step: self.factor(step, length))
