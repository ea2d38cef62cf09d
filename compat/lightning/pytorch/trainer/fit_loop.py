"""``trainer.fit_loop``: what Lightning code reads of it."""

from __future__ import annotations

from typing import Any

from ..... import PacelineError

_NAMES = ("max_epochs", "min_epochs", "max_steps", "min_steps")


class FitLoop:
    """Limits and place of a fit.

    Args:
        trainer: The trainer of this package.
    """

    def __init__(self, trainer: Any) -> None:
        vars(self)["_trainer"] = trainer

    def __getattr__(self, name: str) -> Any:
        if name in (*_NAMES, "is_last_batch"):
            return getattr(self._trainer, name)
        raise AttributeError(
            f"fit_loop has no attribute {name!r} here; use {', '.join(_NAMES)} of it, or current_epoch, "
            "global_step, num_training_batches, is_last_batch of the trainer"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        way = f'Trainer({name}={value!r}) and fit(..., ckpt_path="last") train on where the last fit ended'
        raise PacelineError(f"fit_loop.{name} cannot be set", fix=way if name in _NAMES else None)

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return int(self._trainer.current_epoch)
