"""What a strategy must be able to do. ``Single`` is the readable null case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .environment import Environment
from .precision import Precision

T = TypeVar("T")


class Strategy(ABC):
    """Where and how a run computes. The loop knows these verbs and nothing else.

    ``attach`` comes first; the verbs that reduce or synchronise do nothing where there is one device.
    """

    name: str = ""
    environment: Environment
    precision: Precision

    def attach(self, environment: Environment, precision: Precision) -> None:
        """Take this process' place and the run's precision."""
        precision.attach(environment.device)
        self.environment = environment
        self.precision = precision

    @property
    def device(self) -> torch.device:
        """The device steps run on."""
        return self.environment.device

    @abstractmethod
    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        """Place and wrap the module, then build its optimizers: in the order this strategy needs.

        Returns what ``build_optimizers`` returned.
        """

    @abstractmethod
    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """A function that runs ``module.<name>`` through the wrapped module, under the precision."""

    def synchronise_gradients(self, enabled: bool) -> None:
        """Switch gradient reduction off for all but the last micro-batch of a step."""

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of ``loss``."""

    @abstractmethod
    def unscale(self, optimizer: Optimizer) -> None:
        """Leave the reduced, true gradients of ``optimizer`` in ``.grad``."""

    @abstractmethod
    def multiply_gradients(self, optimizer: Optimizer, factor: Tensor | float) -> None:
        """Multiply the gradients of ``optimizer`` in place."""

    @abstractmethod
    def clip(self, optimizer: Optimizer, norm: float | None, value: float | None) -> None:
        """Clip the gradients of ``optimizer`` by their total norm, by value, or both."""

    @abstractmethod
    def step(self, optimizer: Optimizer) -> bool:
        """Update the weights and clear their gradients; False when the precision skipped the update."""

    @abstractmethod
    def reduce(self, values: Tensor, op: str = "sum") -> Tensor:
        """``sum``, ``min`` or ``max`` over all ranks, the same result on each."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """One value of every rank, in the order of ranks, on each."""

    @abstractmethod
    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of rank ``source``, on each."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    @abstractmethod
    def save_tensors(self, folder: str, tensors: dict[str, Tensor], files: dict[str, int]) -> None:
        """Write ``tensors`` as safetensors files into ``folder``; ``files`` numbers each one's file."""

    @abstractmethod
    def load_tensors(self, folder: str, names: Iterable[str]) -> dict[str, Tensor]:
        """Read the tensors of ``names`` out of the safetensors files in ``folder``, on the CPU."""

    def close(self) -> None:
        """Release what was set up."""


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters an optimizer holds."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def clear_gradients(optimizer: Optimizer) -> None:
    """``zero_grad(set_to_none=True)`` without the profiler record around it: 4 us less a step."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
