"""What a strategy must be able to do. ``Single`` is the readable null case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..common.argument_checks import check_names
from .dtypes.precision import Precision
from .estimate.description import Description
from .launch.environment import Environment
from .ranks.collectives import Collectives
from .settings import ActivationOptions, StrategySettings
from .trained import TrainedChange
from .weights import Weights

T = TypeVar("T")


class Strategy(ABC):
    """Where and how a run computes. The loop knows these verbs and nothing else.

    ``attach`` comes first; the verbs that reduce or synchronise do nothing where there is one device.

    Attributes:
        name: What it is called in messages and in ``Trainer(strategy=...)``.
        many_ranks: Whether it can compute on more ranks than one.
        repeats_steps: Whether a step that failed while it computed gradients can be repeated: no other rank
            waits within it, and no engine does.
        skips_by_itself: Whether its own step finds and skips non-finite gradients.
        activations: Whether activations are computed again in backward, or kept on the host until then.
        settings: What the run asks of it; the Trainer puts it here before ``attach``, and what a step is
            before ``setup``.
        around_hooks: What is entered around each hook of the user, where parameters are in parts.
        environment: Rank, world size and device of this process, since ``attach``.
        precision: In which dtypes it computes, since ``attach``.
        collectives: What this rank says to the others, since ``attach``.
        weights: Where the weights lie, since ``attach``: parts, whole tensors, what checkpoints hold.

    Example:
        >>> strategy = trainer.strategy
        >>> isinstance(strategy, Strategy), strategy.name, strategy.environment.world_size
        (True, 'single', 1)
        >>> sorted(strategy.weights.full_tensors(trainer.module))
        ['layer.bias', 'layer.weight']
    """

    name: str = ""
    many_ranks: bool = False
    repeats_steps: bool = False
    skips_by_itself: bool = False
    activations: ActivationOptions = ActivationOptions()
    settings: StrategySettings = StrategySettings()
    around_hooks: AbstractContextManager[object] | None = None
    environment: Environment
    precision: Precision
    collectives: Collectives
    weights: Weights

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Refuse wrong keywords of a built-in strategy, all in one report."""
        check_names(cls, options, args)
        return super().__new__(cls)

    if not TYPE_CHECKING:  # a type checker is to know which names there are

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property failed: its own error, again
            text = f"{type(self).__name__} has no attribute {name!r}"
            for part, kind in {"collectives": Collectives, "weights": Weights}.items():
                if name[0] != "_" and hasattr(kind, name):
                    text += f"; use strategy.{part}.{name}"
            raise AttributeError(text, name=name, obj=self)

    def attach(self, environment: Environment, precision: Precision) -> None:
        """Join the other ranks, with this environment and the run's precision.

        Raises:
            PacelineError: when this strategy cannot compute there.
        """
        self.environment, self.precision = environment, precision
        self.collectives = Collectives(environment)
        self.weights = Weights(self.collectives)

    @property
    def device(self) -> torch.device:
        """The device steps run on."""
        return self.environment.device

    @property
    def description(self) -> Description:
        """What it says of itself beforehand, without a device or other ranks: bytes and collectives."""
        return Description(self.many_ranks)

    @abstractmethod
    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        """Place and wrap the module, then build its optimizers: in the order this strategy needs.

        Where ``module.automatic_optimization`` is False, the module calls backward and step itself.
        Returns what ``build_optimizers`` returned.
        """

    def check_training(self) -> None:
        """See that it trains, before anything is loaded.

        Raises:
            PacelineError: where it has ``validate``, ``test`` and ``predict`` alone.
        """

    def check_unfreezing(self) -> None:
        """See that parameters which are frozen in ``setup`` can be trained later.

        Raises:
            PacelineError: where what is trained is fixed at the start.
        """

    def trainable_changed(self, module: nn.Module, change: TrainedChange) -> None:
        """Follow a change of what is trained since ``setup`` or the last call; on all ranks, between steps.

        Raises:
            PacelineError: where it cannot be followed; the error names the parameters.
        """

    @abstractmethod
    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """A function that runs ``module.<name>`` through the wrapped module, under the precision."""

    def synchronise_gradients(self, enabled: bool) -> None:
        """Switch gradient reduction off for all but the last micro-batch of a step."""

    def begin_accumulation(self) -> None:
        """A step of several micro-batches begins: their gradients are summed in ``accumulate_dtype``."""

    def finish_accumulation(self) -> None:
        """The last of them has gone backward: gradients have the dtype of their parameters again."""

    def discard_gradients(self, optimizer: Optimizer) -> None:
        """Leave a step that failed while it computed gradients, as if it had not begun, to repeat it."""

    @abstractmethod
    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        """Accumulate the gradients of ``loss``; over ranks they are averaged.

        Args:
            loss: A tensor of one element.
            retain_graph: Keep the graph, to go backward from another loss over it.
        """

    def stand_in_loss(self, module: nn.Module) -> Tensor | None:
        """A loss that gives every trained parameter a gradient of NaN, for a rank that has no other.

        None where ranks that compute a step together would wait for each other all the same.
        """
        return None

    @abstractmethod
    def unscale(self, optimizer: Optimizer) -> None:
        """Leave the reduced, true gradients of ``optimizer`` in ``.grad``."""

    def find_nonfinite(self, optimizer: Optimizer, found: Tensor) -> bool:
        """Raise ``found`` above 0 where a gradient of ``optimizer`` is not finite, after ``unscale``.

        Args:
            optimizer: The optimizer whose parameters' ``.grad`` is read.
            found: A float32 scalar on the device, shape (); the same on all ranks afterwards.

        Returns:
            False where nothing looked: ``step`` does so by itself, and returns False then.
        """
        return False

    @abstractmethod
    def multiply_gradients(self, optimizer: Optimizer, factor: Tensor | float) -> None:
        """Multiply the gradients of ``optimizer`` in place."""

    @abstractmethod
    def clip(self, optimizer: Optimizer, norm: float | None, value: float | None) -> Tensor | None:
        """Clip the gradients of ``optimizer`` by their total norm, by value, or both.

        Returns:
            The total norm before clipping, a scalar; None where it was not measured, or not yet.
        """

    @abstractmethod
    def update(self, optimizer: Optimizer) -> bool:
        """Update the weights; False when the precision skipped the update."""

    @abstractmethod
    def step(self, optimizer: Optimizer) -> bool:
        """``update``, for a step with one optimizer: a new loss scale is chosen, gradients cleared."""

    @abstractmethod
    def skip(self, optimizer: Optimizer) -> None:
        """End a step that ``unscale`` has seen without an update: gradients are cleared."""

    @contextmanager
    def evaluation(self, module: nn.Module) -> Iterator[None]:
        """What surrounds a pass without gradients: ranks read the same running statistics, say."""
        yield

    def state_dict(self) -> dict[str, Any]:
        """What it must remember to continue exactly as it would have, as plain data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave, of the same strategy on as many ranks. On all ranks."""

    def close(self) -> None:
        """Release what was set up for one run."""


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters an optimizer holds."""
    return [p for group in optimizer.param_groups for p in group["params"]]
