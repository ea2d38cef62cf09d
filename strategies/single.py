"""One device: the null case, and the strategy to read first."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .base import Strategy, clear_gradients, parameters_of

T = TypeVar("T")


class Single(Strategy):
    """Computes on one device of any kind ``torch.accelerator`` knows, or on the CPU."""

    name = "single"

    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        self.precision.convert_module(module)
        module.to(self.device)
        return build_optimizers()

    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        step: Callable[..., Any] = getattr(module, name)
        context = self.precision.context(self.device)
        if context is None:
            return step

        def step_in_context(*args: Any) -> Any:
            with context():
                return step(*args)

        return step_in_context

    def backward(self, loss: Tensor) -> None:
        if self.precision.scales:
            loss = self.precision.scale(loss)
        loss.backward()

    def unscale(self, optimizer: Optimizer) -> None:
        self.precision.unscale(optimizer)

    def multiply_gradients(self, optimizer: Optimizer, factor: Tensor | float) -> None:
        grads = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        if grads:
            torch._foreach_mul_(grads, factor)

    def clip(self, optimizer: Optimizer, norm: float | None, value: float | None) -> None:
        parameters = parameters_of(optimizer)
        if norm is not None:
            nn.utils.clip_grad_norm_(parameters, norm)
        if value is not None:
            nn.utils.clip_grad_value_(parameters, value)

    def step(self, optimizer: Optimizer) -> bool:
        applied = True
        if self.precision.scales:
            applied = self.precision.step(optimizer)
            self.precision.update()
        else:
            optimizer.step()
        clear_gradients(optimizer)
        return applied

    def reduce(self, values: Tensor, op: str = "sum") -> Tensor:
        return values

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any, source: int = 0) -> Any:
        return value

    def save_tensors(self, folder: str, tensors: dict[str, Tensor], files: dict[str, int]) -> None:
        from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

        writer = HuggingFaceStorageWriter(folder, fqn_to_index_mapping=files, save_distributed=True)
        with _one_process():
            save(tensors, storage_writer=writer, no_dist=True)

    def load_tensors(self, folder: str, names: Iterable[str]) -> dict[str, Tensor]:
        from torch.distributed.checkpoint import HuggingFaceStorageReader, load

        reader = HuggingFaceStorageReader(folder)
        stored: dict[str, Any] = reader.read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(stored[name].size, dtype=stored[name].properties.dtype) for name in names
        }
        with _one_process():
            load(tensors, storage_reader=reader, no_dist=True)
        return tensors


@contextmanager
def _one_process() -> Iterator[None]:
    """Without the warning that there is one process only: that is what this strategy is for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
