"""Manual optimization: the optimizers a ``training_step`` steps itself, and its backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import PacelineError
from ...strategies import Strategy
from ...strategies.base import parameters_of
from ..faults.nonfinite import Guard


def is_own_method(found: Any) -> bool:
    """Whether an attribute of an optimizer is a method that torch's optimizers do not have."""
    if not inspect.ismethod(found) or found.__name__.startswith("_"):
        return False
    return not hasattr(Optimizer, found.__name__)


def refuse_own_method(
    name: str, optimizer: Optimizer, strategy: Strategy, module: nn.Module | None, scaled: bool
) -> None:
    """Refuse a method that may change weights where only ``step`` can.

    Args:
        name: Of the method.
        optimizer: That has it.
        strategy: Of the run.
        module: The user's; None: the optimizer holds its parameters.
        scaled: Whether gradients are scaled.

    Raises:
        PacelineError: for scaled gradients, and where the optimizer does not hold the module's parameters.
    """
    held = {id(p) for p in parameters_of(optimizer)}
    foreign = module is not None and not (held and held.issubset(map(id, module.parameters())))
    if not (foreign or scaled):
        return
    way = "leave strategy= out of the Trainer" if foreign else 'precision="bf16" or "32"'
    raise PacelineError(
        f"{type(optimizer).__name__}.{name}() may change weights, which only step() can do "
        + (f"under strategy {strategy.name!r}" if foreign else "with gradients that are scaled"),
        code="optimizer-not-supported",
        got=f"strategy={strategy.name!r}, precision={strategy.precision.name!r}",
        fix=f"{way}; optimizer.optimizer.{name}() where it leaves weights alone",
    )


class ManualOptimizer:
    """An optimizer whose ``step`` unscales and clips its parameters' gradients first.

    So does a method that torch's optimizers do not have, such as ``first_step`` of a SAM, where gradients
    came since the last update. Everything else is the optimizer's own: ``param_groups``, ``state`` ...

    Args:
        clip_norm: The largest total norm of the gradients; None does not clip.
        clip_value: The largest absolute value of a gradient; None does not clip.
        guard: Skips updates with gradients that are not finite; None lets them through.
        before_step: Called with the optimizer when its gradients are reduced and unscaled, not yet clipped.
        note_used: Called when the settings are those that the update is made with.
        module: The user's, whose parameters the optimizer holds, or the strategy in another form.

    Attributes:
        has_stepped: Whether it has made an update.
        has_new_gradients: Whether ``manual_backward`` was called since the last one.
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
        module: nn.Module | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._strategy, self._guard, self._before_step = strategy, guard, before_step
        self._note_used = note_used
        self._clip = (clip_norm, clip_value)
        self._module = module
        self.has_stepped = self.has_new_gradients = False

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update this optimizer's parameters. Gradients stay until ``zero_grad``.

        Args:
            closure: For optimizers that evaluate the loss themselves; nothing is clipped then.
        """
        if closure is not None:
            self.has_stepped = True
            self._refuse_closure()
            self._note_used()
            self.optimizer.step(closure)
            return
        guard = self._guard
        if not self._gradients_are_ready():
            return
        if not self._strategy.update(self.optimizer) and guard is not None and guard.skipped_by_strategy():
            guard.hold_back(self.optimizer)

    def _gradients_are_ready(self) -> bool:
        """Reduce, unscale, check and clip them, and show them to hooks. False: there is no update."""
        strategy, guard = self._strategy, self._guard
        self.has_stepped, self.has_new_gradients = True, False
        strategy.unscale(self.optimizer)
        if guard is not None and guard.finds(self.optimizer):
            guard.hold_back(self.optimizer)
            return False
        self._before_step(self.optimizer)
        self._note_used()
        if self._clip != (None, None):
            strategy.clip(self.optimizer, *self._clip)
        return True

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A method of the optimizer's class, which may change weights; None where the update is skipped."""
        scaled = self.has_new_gradients and self._strategy.precision.scales
        refuse_own_method(method.__name__, self.optimizer, self._strategy, self._module, scaled)
        if self.has_new_gradients and not self._gradients_are_ready():
            return None
        return method(*args, **kwargs)

    def _refuse_closure(self) -> None:
        world_size, precision = self._strategy.environment.world_size, self._strategy.precision
        if world_size > 1:
            raise PacelineError(
                "an optimizer that evaluates the loss itself works on one device",
                code="optimizer-not-supported",
                got=f"optimizer.step(closure) on {world_size} ranks",
                fix="devices=1, or an optimizer that takes a step without a closure",
            )
        if precision.scales:
            raise PacelineError(
                "an optimizer that evaluates the loss itself cannot work on scaled gradients",
                code="optimizer-not-supported",
                got=f"precision={precision.name!r} and optimizer.step(closure)",
                fix='precision="bf16" or "32"',
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.optimizer, name)
        return partial(self._call, found) if is_own_method(found) else found


class ManualOptimization:
    """What ``self.optimizers()`` and ``self.manual_backward(loss)`` of a module are.

    Args:
        optimizers: In the order of ``configure_optimizers``.
        strategy: Of the run.
        guard: Looks at losses; None where nothing does.
        automatic: Whether the loop itself goes backward and updates.

    Attributes:
        optimizers: In the order of ``configure_optimizers``.
        losses: Those of the step under way that were gone backward from.
    """

    def __init__(
        self,
        optimizers: Sequence[ManualOptimizer],
        strategy: Strategy,
        guard: Guard | None,
        automatic: bool = False,
    ) -> None:
        self.optimizers, self._automatic = list(optimizers), automatic
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
        """``loss.backward()`` under the run's precision and strategy.

        Raises:
            PacelineError: under automatic optimization.
        """
        if self._automatic:
            raise PacelineError(
                "manual_backward is for manual optimization; else the Trainer goes backward and updates",
                code="manual-optimization",
                fix="return the loss alone; or set self.automatic_optimization = False in __init__, and "
                "call self.optimizers().step() too",
            )
        self.losses.append(loss.detach())
        for optimizer in self.optimizers:
            optimizer.has_new_gradients = True
        if self._guard is not None:
            loss = self._guard.watched(loss)
        loss = loss if self._loss_weight == 1.0 else loss * self._loss_weight
        self._strategy.backward(loss, retain_graph)
