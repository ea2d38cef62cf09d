"""Learning rate schedules by name and duration: a warm-up, then constant, linear, cosine, or WSD.

``configure_optimizers`` returns one beside its optimizer: ``{"optimizer": optimizer, "lr_scheduler":
Cosine(warmup="5%")}``, or its name, ``"cosine"``. The Trainer knows how many steps the run has and builds
torch's ``LambdaLR``, which steps after each optimizer step. A run that resumes with another length has the
rates of its new length from there on.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from .common.argument_checks import PART, check_arguments, one_of
from .durations import Duration
from .errors import PacelineError, nearest

if TYPE_CHECKING:
    from torch.optim import Optimizer


__all__ = [
    "SCHEDULES",
    "WSD",
    "Constant",
    "Cosine",
    "Linear",
    "RateLR",
    "RateSchedule",
    "RunLength",
    "make_schedule",
]

_ALLOWED = 'steps (500 or "500st"), epochs ("2ep"), a part of the run ("5%")'


@dataclass(frozen=True)
class RunLength:
    """How long a run is, as far as schedules need it.

    Args:
        steps: Optimizer steps in all; None where that is unknown.
        epoch: Optimizer steps in an epoch; None where that is unknown.
        decay: The steps of the last decay, where ``fit(decay=...)`` gives them.

    Example:
        >>> RunLength(1000, 100).amount("5%", "warmup")
        50
    """

    steps: int | None
    epoch: int | None = None
    decay: int | None = None

    def amount(self, value: Any, name: str) -> int:
        """Steps in a duration or a part of the run, rounded to the next whole one.

        Args:
            value: A count of steps, a duration, or a part such as ``"5%"``.
            name: The argument, for errors.

        Raises:
            PacelineError: for anything else, and where a length is unknown that it needs.
        """
        part = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,9})?)\s*%\s*", value) if isinstance(value, str) else None
        if part is not None and Fraction(part[1]) <= 100:
            return math.ceil(Fraction(part[1]) / 100 * self.total(f"{name}={value!r}"))
        try:
            duration = Duration.parse(value, where=name)
        except PacelineError:
            is_part = isinstance(value, float) and 0 < value <= 1
            raise PacelineError(
                f"{name} is not a duration in steps",
                got=value,
                allowed=_ALLOWED,
                meant=f'"{value * 100:g}%"' if is_part else None,
            ) from None
        if duration.unit == "st":
            return int(duration.amount)
        if duration.unit == "s" or self.epoch is None:
            raise PacelineError(
                f"{name}={value!r} cannot be counted in steps before the run",
                allowed=_ALLOWED,
                fix=None if duration.unit == "s" else "count in steps: how many an epoch has is unknown",
            )
        return math.ceil(duration.amount * self.epoch)

    def total(self, who: str) -> int:
        """Optimizer steps in all.

        Raises:
            PacelineError: where they are unknown; ``who`` needs them.
        """
        if self.steps is None:
            raise PacelineError(
                f"{who} needs the length of the run, which is unknown",
                fix="Trainer(max_steps=...), or max_epochs with data that has a length",
            )
        return self.steps


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

    def __post_init__(self) -> None:
        self._check("warmup")

    def _check(self, *durations: str, **others: Any) -> None:
        name = type(self).__name__
        for one in durations:
            value = getattr(self, one)
            if not (type(value) is int and value == 0):
                RunLength(100, 100).amount(value, f"{name}: {one}")
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
            return (step + 1) / (warmup + 1)
        return self.after_warmup(step - warmup, self._steps(length) - warmup, length)

    def _steps(self, length: RunLength) -> int:
        return length.total(f"{type(self).__name__}()")

    def build(self, optimizer: Optimizer, length: RunLength) -> RateLR:
        """The scheduler, to be stepped after each optimizer step.

        Raises:
            PacelineError: where a length is unknown that it needs.
        """
        return RateLR(optimizer, lambda step: self.factor(step, length))


@dataclass(frozen=True, kw_only=True)
class Constant(RateSchedule):
    """A warm-up, then the optimizer's own rate.

    Args:
        warmup: A duration or a part of the run; 0 for none.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [Constant(warmup=3).factor(step, RunLength(5)) for step in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        return 1.0

    def _steps(self, length: RunLength) -> int:
        return length.steps or 0


@dataclass(frozen=True, kw_only=True)
class Linear(RateSchedule):
    """A warm-up, then a straight line that has reached ``end`` when the run is over.

    Args:
        warmup: A duration or a part of the run; 0 for none.
        end: The last part of the rate, from 0 to 1.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [Linear(end=0.5).factor(step, RunLength(2)) for step in range(3)]
        [1.0, 0.75, 0.5]
    """

    end: float = 0.0

    def __post_init__(self) -> None:
        self._check("warmup", end=(self.end, PART))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        return _between(1.0, self.end, step, steps, "linear")


@dataclass(frozen=True, kw_only=True)
class Cosine(RateSchedule):
    """A warm-up, then half a cosine that has reached ``end`` when the run is over.

    SGDR without restarts (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983).

    Args:
        warmup: A duration or a part of the run; 0 for none.
        end: The last part of the rate, from 0 to 1.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [round(Cosine(end=0.1).factor(step, RunLength(4)), 3) for step in range(5)]
        [1.0, 0.868, 0.55, 0.232, 0.1]
    """

    end: float = 0.0

    def __post_init__(self) -> None:
        self._check("warmup", end=(self.end, PART))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        return _between(1.0, self.end, step, steps, "cosine")


_SHAPES = one_of("linear", "cosine", "sqrt")


@dataclass(frozen=True, kw_only=True)
class WSD(RateSchedule):
    """A warm-up, a long stable part, and a decay at the run's end.

    Warmup-stable-decay (Hu et al. 2024, https://arxiv.org/abs/2404.06395). A decay can be branched from any
    checkpoint of the stable part: ``trainer.fit(module, data, resume=path, decay="10%")``.

    Args:
        warmup: A duration or a part of the run; 0 for none.
        decay: The duration of the last part, or its part of the run.
        end: The last part of the rate, from 0 to 1.
        shape: ``"linear"``, ``"cosine"``, or ``"sqrt"``: 1 - sqrt(t) (Hägele et al. 2024,
            https://arxiv.org/abs/2405.18392).

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> [WSD(decay=2).factor(step, RunLength(5)) for step in range(6)]
        [1.0, 1.0, 1.0, 1.0, 0.5, 0.0]
    """

    decay: Any = "10%"
    end: float = 0.0
    shape: str = "linear"

    def __post_init__(self) -> None:
        self._check("warmup", "decay", end=(self.end, PART), shape=(self.shape, _SHAPES))

    def after_warmup(self, step: int, steps: int, length: RunLength) -> float:
        decay = length.amount(self.decay, "decay") if length.decay is None else length.decay
        decay = min(decay, steps)
        return _between(1.0, self.end, max(0, step - (steps - decay)), decay, self.shape)


def _between(first: float, last: float, step: int, steps: int, shape: str) -> float:
    """From ``first`` at step 0 to ``last`` at step ``steps``, and from there on."""
    part = min(step / steps, 1.0) if steps > 0 else float(step > 0)
    if shape == "cosine":
        part = (1 - math.cos(math.pi * part)) / 2
    elif shape == "sqrt":
        part = math.sqrt(part)
    return first + (last - first) * part


SCHEDULES: dict[str, type[RateSchedule]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "wsd": WSD,
}
"""The schedules that ``configure_optimizers`` may name."""


def make_schedule(name: str, **arguments: Any) -> RateSchedule:
    """The schedule of that name.

    Args:
        name: A name of ``SCHEDULES``.
        **arguments: Of the schedule.

    Raises:
        PacelineError: for another name, and for arguments that are not right.

    Example:
        >>> make_schedule("cosine", warmup="5%")
        Cosine(warmup='5%', end=0.0)
    """
    if name not in SCHEDULES:
        raise PacelineError(
            f"there is no schedule {name!r}",
            allowed=", ".join(SCHEDULES),
            meant=nearest(name, SCHEDULES),
        )
    kind = SCHEDULES[name]
    fields = tuple(kind.__dataclass_fields__)
    for argument in arguments:
        if argument not in fields:
            raise PacelineError(
                f"{kind.__name__} has no argument {argument!r}",
                allowed=", ".join(fields),
                meant=nearest(argument, fields),
            )
    return kind(**arguments)
