"""Manual optimization: the optimizers a ``training_step`` steps itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from ...errors import PacelineError

if TYPE_CHECKING:
    from ..trainer import Trainer


class ManualOptimizer:
    """An optimizer whose ``step`` unscales and clips the gradients of its own parameters first.

    Everything else is the optimizer's own: ``zero_grad``, ``param_groups``, ``state`` ...
    """

    def __init__(self, optimizer: Optimizer, trainer: Trainer) -> None:
        self.optimizer = optimizer
        self._trainer = trainer
        self.has_stepped = False

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update this optimizer's parameters. Gradients stay until ``zero_grad``.

        Args:
            closure: For optimizers that evaluate the loss themselves; nothing is clipped then.
        """
        self.has_stepped = True
        trainer = self._trainer
        strategy, settings = trainer.strategy, trainer.settings
        if closure is not None:
            if trainer.world > 1:
                raise PacelineError(
                    "an optimizer that evaluates the loss itself works on one device",
                    got=f"optimizer.step(closure) on {trainer.world} ranks",
                    fix="devices=1, or an optimizer that takes a step without a closure",
                )
            if strategy.precision.scales:
                raise PacelineError(
                    "an optimizer that evaluates the loss itself cannot work on scaled gradients",
                    got=f"precision={strategy.precision.name!r} and optimizer.step(closure)",
                    fix='precision="bf16" or "32"',
                )
            self.optimizer.step(closure)
            return
        strategy.unscale(self.optimizer)
        guard = trainer.guard
        if guard is not None and guard.finds(self.optimizer):
            guard.hold_back(self.optimizer)
            return
        for hook in trainer.hooks["on_before_optimizer_step"]:
            hook(trainer, self.optimizer)
        if settings.clip_grad_norm is not None or settings.clip_grad_value is not None:
            strategy.clip(self.optimizer, settings.clip_grad_norm, settings.clip_grad_value)
        if not strategy.update(self.optimizer) and guard is not None and guard.skipped_by_strategy():
            guard.hold_back(self.optimizer)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)
