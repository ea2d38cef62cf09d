"""Brings batches to the device, where it can while the device computes the step before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...callbacks.hooks import with_arity
from ...errors import PacelineError
from ...strategies.machine.devices import copies_aside
from ..batch_hooks import BATCH_HOOKS, BatchHooks
from ..rng import seeded
from ..utils.nested import map_tensors, to_device


def make_transfer(
    device: torch.device, dtype: torch.dtype | None, channels_last: bool = False
) -> Callable[[Any], Any] | None:
    """What brings a batch to the device, its dtype and format; None where nothing would change."""
    if device.type == "cpu" and dtype is None and not channels_last:
        return None
    kind = TransferAside if copies_aside(device) else Transfer
    return kind(device, dtype, channels_last)


class Transfer:
    """Moves tensors, and objects with ``.to``, of a nested batch.

    Args:
        dtype: What floats become; None leaves them.
        channels_last: Whether images get this memory format.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype | None, channels_last: bool = False
    ) -> None:
        self.device, self.dtype, self.channels_last = device, dtype, channels_last

    def __call__(self, batch: Any) -> Any:
        return map_tensors(batch, self.move)

    def move(self, value: Any) -> Any:
        """One tensor or object."""
        return to_device(value, self.device, self.dtype, self.channels_last)


class TransferAside(Transfer):
    """The same on a side stream, from pinned memory: the copy waits for nothing on the device.

    The host is ahead of the device, so that a step's batch is copied while the step before is computed.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype | None, channels_last: bool = False
    ) -> None:
        super().__init__(device, dtype, channels_last)
        self._aside = torch.Stream(device)
        self._moved: list[Tensor] = []

    def __call__(self, batch: Any) -> Any:
        moved = map_tensors(batch, self.move)
        computing = torch.accelerator.current_stream(self.device)
        computing.wait_stream(self._aside)
        for tensor in self._moved:
            tensor.record_stream(computing)  # its memory is not used again before that is done with it
        self._moved.clear()
        return moved

    def move(self, value: Any) -> Any:
        """Tensors of the host aside, whatever else (it may be computed yet) where the step computes."""
        if type(value) is not Tensor or not value.is_cpu or value.layout is not torch.strided:
            return super().move(value)
        pinned = value if value.is_pinned() else value.contiguous().pin_memory()
        with self._aside:
            copied = pinned.to(self.device, non_blocking=True)
            moved: Tensor = super().move(copied)  # to its dtype on the device: the host would wait for it
        self._moved += [copied, moved]
        return moved


@dataclass(frozen=True)
class HookedTransfer:
    """The way of a batch to the device as batch hooks have it.

    Args:
        hooks: ``BatchHooks`` that somebody overrides, by name.
        usual: What brings a batch to the device where no hook does; None where nothing would change.
        dtype: What floats become where a hook brings it; None leaves them.
    """

    hooks: dict[str, Callable[..., Any]]
    usual: Callable[[Any], Any] | None
    device: torch.device
    dtype: torch.dtype | None

    def __call__(self, batch: Any, dataloader_idx: int, seed: int) -> Any:
        """The batch on the device.

        Args:
            batch: As it was read.
            dataloader_idx: The number of its loader, from 0.
            seed: What the hooks draw under.

        Raises:
            PacelineError: when a hook returns None.
        """
        before, transfer, after = BATCH_HOOKS
        with seeded(seed, self.device):
            batch = self._call(before, batch, dataloader_idx)
            if transfer in self.hooks:
                batch = self._call(transfer, batch, self.device, dataloader_idx)
                if self.dtype is not None:
                    batch = map_tensors(batch, self._cast)
            elif self.usual is not None:
                batch = self.usual(batch)
            return self._call(after, batch, dataloader_idx)

    def _call(self, name: str, batch: Any, *more: Any) -> Any:
        hook = self.hooks.get(name)
        if hook is None:
            return batch
        changed = hook(batch, *more)
        if changed is None and batch is not None:
            raise PacelineError(
                f"{name} returned None in the place of a batch",
                code="override-incomplete",
                fix="return batch",
            )
        return changed

    def _cast(self, value: Any) -> Any:
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def batch_hooks_of(*owners: Any) -> dict[str, Callable[..., Any]]:
    """The batch hooks that the first of ``owners`` overrides, by name; each takes all its arguments."""
    found: dict[str, Callable[..., Any]] = {}
    for name in BATCH_HOOKS:
        for owner in owners:
            hook = getattr(owner, name, None)
            if callable(hook) and getattr(hook, "__func__", hook) is not getattr(BatchHooks, name):
                found.setdefault(name, with_arity(hook, 3 if name.startswith("transfer") else 2))
    return found
