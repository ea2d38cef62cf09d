"""Learning rate schedules by name and duration: a warm-up, then constant, linear, cosine, WSD and others.

``configure_optimizers`` returns one beside its optimizer: ``{"optimizer": optimizer, "lr_scheduler":
Cosine(warmup="5%")}``, or its name, ``"cosine"``. The Trainer knows how many steps the run has and builds
torch's ``LambdaLR``, which steps after each optimizer step. A run that resumes with another length has the
rates of its new length from there on.
"""

from __future__ import annotations

from typing import Any

from ..errors import PacelineError, nearest
from .rate_schedule import RateLR, RateSchedule
from .run_length import RunLength
from .shapes import WSD, Constant, Cosine, CosineWithRestarts, InverseSqrt, Linear, Polynomial

__all__ = [
    "SCHEDULES",
    "WSD",
    "Constant",
    "Cosine",
    "CosineWithRestarts",
    "InverseSqrt",
    "Linear",
    "Polynomial",
    "RateLR",
    "RateSchedule",
    "RunLength",
    "make_schedule",
]

SCHEDULES: dict[str, type[RateSchedule]] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "cosine-with-restarts": CosineWithRestarts,
    "polynomial": Polynomial,
    "inverse-sqrt": InverseSqrt,
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
        Cosine(warmup='5%', warmup_start=None, end=0.0)
    """
    if name not in SCHEDULES:
        raise PacelineError(
            f"there is no schedule {name!r}",
            code="unknown-choice",
            allowed=", ".join(SCHEDULES),
            meant=nearest(name, SCHEDULES),
        )
    kind = SCHEDULES[name]
    fields = tuple(kind.__dataclass_fields__)
    for argument in arguments:
        if argument not in fields:
            raise PacelineError(
                f"{kind.__name__} has no argument {argument!r}",
                code="unknown-argument",
                allowed=", ".join(fields),
                meant=nearest(argument, fields),
            )
    return kind(**arguments)
