"""A logged value that decides something: its full name and which way is better."""

from __future__ import annotations

import math
import re

from ...common.argument_checks import one_of
from ...errors import PacelineError, nearest

PHASES = ("train", "val", "test")
_MIN = ("loss", "error", "perplexity", "mse", "rmse", "mae")
_MAX = ("accuracy", "acc", "f1", "auc", "auroc", "iou", "bleu", "r2", "psnr", "ssim")


def full_name(name: str, phase: str) -> str:
    """``loss``, ``val_loss`` and ``val/loss`` are one value in validation: ``val/loss``."""
    if "/" in name:
        return name
    return f"{phase}/{name.removeprefix(phase + '_')}"


def monitor_name(name: str) -> str:
    """A monitor's full name; one without a phase is meant in validation."""
    for phase in PHASES:
        if name.startswith(phase + "_"):
            return full_name(name, phase)
    return full_name(name, "val")


MODE = one_of("min", "max", None)


class Monitor:
    """A value to watch.

    Args:
        name: As it is logged; ``val_loss``, ``loss`` and ``val/loss`` are the same.
        mode: ``"min"`` or ``"max"``; None takes it from the name, where that is clear.
        owner: Who watches, for messages.

    Raises:
        PacelineError: without a mode, where the name does not tell.
    """

    def __init__(self, name: str, mode: str | None, owner: str) -> None:
        self.name = monitor_name(name)
        self.mode = mode or self._mode_of(self.name, owner)

    @staticmethod
    def _mode_of(name: str, owner: str) -> str:
        words = re.split(r"[^a-z0-9]+", name.rpartition("/")[2].lower())
        if any(word in words for word in _MIN):
            return "min"
        if any(word in words for word in _MAX):
            return "max"
        meant = {word: nearest(word, [one for one in (*_MIN, *_MAX) if len(one) > 3]) for word in words}
        written = next((word for word in words if meant[word]), None)
        raise PacelineError(
            f"{owner}: whether a high or a low {name!r} is better is not clear from its name",
            code="missing-argument",
            meant=None if written is None else name.lower().replace(written, str(meant[written])),
            fix="give mode='min' or mode='max'",
        )

    def better(self, value: float, best: float | None, min_delta: float = 0.0) -> bool:
        """Whether ``value`` beats ``best`` by more than ``min_delta``. A NaN never does."""
        if math.isnan(value):
            return False
        if best is None:
            return True
        gain = best - value if self.mode == "min" else value - best
        return gain > min_delta
