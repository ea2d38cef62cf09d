"""What Lightning's classes of strategies have in common: ``isinstance(trainer.strategy, DDPStrategy)``."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

from .view import StrategyView


class LightningStrategy(ABCMeta):
    """The metaclass of Lightning's strategies, each of which is a subclass of one of ours."""

    def __instancecheck__(cls, instance: Any) -> bool:
        """Whether it is one, or the view on a run that computes by the same strategy of ours."""
        if isinstance(instance, StrategyView):
            ours = next(base for base in cls.__mro__ if not isinstance(base, LightningStrategy))
            return isinstance(instance.ours, ours)
        return super().__instancecheck__(instance)
