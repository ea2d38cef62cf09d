"""Manual optimization: the optimizers a ``training_step`` steps itself, and its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...errors import PacelineError
from ...strategies import Strategy
from ...strategies.base import parameters_of
from ..faults.nonfinite import Guard


class ManualOptimizer:
    """An optimizer whose ``step`` unscales and clips its parameters' gradients first.

    Everything else is the optimizer's own: ``zero_grad``, ``param_groups``, ``state`` ...

    Args:
        clip_norm: The largest total norm of the gradients; None does not clip.
        clip_value: The largest absolute value of a gradient; None does not clip.
        guard: Skips updates with gradients that are not finite; None lets them through.
        before_step: Called with the optimizer when its gradients are reduced and unscaled, not yet clipped.
        note_used: Called when the settings are those that the update is made with.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        strategy: Strategy,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        guard: Guard | None = None,
        before_step: Callable[[Optimizer], None] = lambda optimizer: None,
        note_used: Callable[[], None] = lambda: None,
    ) -> None:
        self.optimizer = optimizer
        self._strategy, self._guard, self._before_step = strategy, guard, before_step
        self._note_used = note_used
        self._clip = (clip_norm, clip_value)
        self.has_stepped = False

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update this optimizer's parameters. Gradients stay until ``zero_grad``.

        Args:
            closure: For optimizers that evaluate the loss themselves; nothing is clipped then.
        """
        self.has_stepped = True
        strategy, guard = self._strategy, self._guard
        if closure is not None:
            self._refuse_closure()
            self._note_used()
            self.optimizer.step(closure)
            return
        strategy.unscale(self.optimizer)
        if guard is not None and guard.finds(self.optimizer):
            guard.hold_back(self.optimizer)
            return
        self._before_step(self.optimizer)
        self._note_used()
        if self._clip != (None, None):
            strategy.clip(self.optimizer, *self._clip)
        if not strategy.update(self.optimizer) and guard is not None and guard.skipped_by_strategy():
            guard.hold_back(self.optimizer)

    def _refuse_closure(self) -> None:
        world_size, precision = self._strategy.environment.world_size, self._strategy.precision
        if world_size > 1:
            raise PacelineError(
                "an optimizer that evaluates the loss itself works on one device",
                got=f"optimizer.step(closure) on {world_size} ranks",
                fix="devices=1, or an optimizer that takes a step without a closure",
            )
        if precision.scales:
            raise PacelineError(
                "an optimizer that evaluates the loss itself cannot work on scaled gradients",
                got=f"precision={precision.name!r} and optimizer.step(closure)",
                fix='precision="bf16" or "32"',
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class ManualOptimization:
    """What ``self.optimizers()`` and ``self.manual_backward(loss)`` of a module are.

    Attributes:
        optimizers: In the order of ``configure_optimizers``.
        losses: Those of the step under way that were gone backward from.
    """

    def __init__(
        self, optimizers: Sequence[ManualOptimizer], strategy: Strategy, guard: Guard | None
    ) -> None:
        self.optimizers = list(optimizers)
        self._strategy, self._guard = strategy, guard
        self.losses: list[Tensor] = []
        self._loss_weight = 1.0
        self._frozen: list[Tensor] = []

    @property
    def has_stepped(self) -> bool:
        """Whether any optimizer has taken a step."""
        return any(optimizer.has_stepped for optimizer in self.optimizers)

    def begin_step(self, loss_weight: float) -> None:
        """The next ``training_step`` begins.

        Args:
            loss_weight: What its losses are multiplied by, so that samples count alike on all ranks.
        """
        self._loss_weight = loss_weight
        self.losses.clear()

    def toggle(self, optimizer: Any) -> None:
        """Let the parameters of the other optimizers need no gradient."""
        self.untoggle()
        own = {id(p) for p in parameters_of(optimizer)}
        others = [p for one in self.optimizers for p in parameters_of(one.optimizer)]
        self._frozen = [p for p in others if p.requires_grad and id(p) not in own]
        for parameter in self._frozen:
            parameter.requires_grad_(False)

    def untoggle(self) -> None:
        """Take ``toggle`` back."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen = []

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        """``loss.backward()`` under the run's precision and strategy."""
        self.losses.append(loss.detach())
        if self._guard is not None:
            loss = self._guard.watched(loss)
        loss = loss if self._loss_weight == 1.0 else loss * self._loss_weight
        self._strategy.backward(loss, retain_graph)
