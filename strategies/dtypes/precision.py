"""Precision plugins: which dtype parameters, computation and gradients have.

They mean the same under every strategy. Each is a small object whose verbs default to doing nothing.
docs/guides/precision.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...common.argument_checks import COUNT, check_arguments
from ...errors import PacelineError, nearest
from ..gradients.finite_gradients import by_device, divide_and_flag
from .loss_scale import LossScale


class Precision:
    """Full fp32 precision, and the verbs the others override.

    Example:
        >>> class Clamped(Precision):
        ...     name, scales = "clamped", True
        ...     def scale(self, loss):
        ...         return loss.clamp(max=10.0)
        >>> trainer = Trainer(precision=Clamped())
    """

    name = "32"
    param_dtype: torch.dtype = torch.float32
    """The dtype parameters are kept and updated in: there is no second copy of them."""
    compute_dtype: torch.dtype = torch.float32
    """The dtype of matrix products."""
    accumulate_dtype: torch.dtype = torch.float32
    """The dtype gradients of the micro-batches of a step are summed in."""
    reduce_dtype: torch.dtype = torch.float32
    """The dtype gradients are averaged over ranks in."""
    input_dtype: torch.dtype | None = None
    """The dtype floating inputs are cast to; None leaves them as they are."""

    loss_scale: float = 1.0
    """What the losses of the current step are multiplied by."""
    skipped_in_a_row: int = 0
    """Updates that were skipped since the last one, because scaled gradients overflowed."""
    max_consecutive_skips: int = 20
    """So many in a row are an error."""
    scales: bool = False
    """Whether ``scale`` and ``unscale`` do anything."""

    @property
    def description(self) -> str:
        """What the first lines of a run say, once ``convert_module`` was called."""
        return self.name

    def attach(self, device: torch.device) -> None:
        """Begin a run. Refuse a device that cannot compute in this precision (one 2x2 product is tried).

        Raises:
            PacelineError: when the product fails.
        """
        try:
            x = torch.ones(2, 2, dtype=self.compute_dtype, device=device)
            torch.mm(x, x)
        except (RuntimeError, TypeError) as error:
            raise PacelineError(
                f"precision {self.name!r} does not run on {device}: {str(error).splitlines()[0]}",
                code="precision-not-supported",
                got=f"precision={self.name!r} on {device}",
                fix='precision="32" runs everywhere',
            ) from None

    def convert_module(self, module: nn.Module) -> None:
        """Give the parameters their dtype, before the optimizers are built."""

    def context(self, device: torch.device) -> Callable[[], AbstractContextManager[Any]] | None:
        """What a step's forward runs in; None when there is nothing to enter."""
        return None

    def scale(self, loss: Tensor) -> Tensor:
        """The loss as ``backward`` is to see it."""
        return loss

    def unscale(self, optimizer: Optimizer) -> None:
        """Take the scale out of the gradients of ``optimizer``."""

    def is_unscaled(self, optimizer: Optimizer) -> bool:
        """Whether ``unscale`` has seen the gradients of ``optimizer`` in this step."""
        return True

    def overflows(self, optimizer: Optimizer) -> list[Tensor]:
        """The flags ``unscale`` set for gradients that are not finite, float32 scalars, one a device."""
        return []

    def record(self, overflowed: bool) -> None:
        """A strategy has unscaled, and taken or skipped an update, by itself: in place of ``step``."""

    def step(self, optimizer: Optimizer) -> bool:
        """Update the weights; False when the update was skipped."""
        optimizer.step()
        return True

    def skip(self, optimizer: Optimizer) -> None:
        """The step of ``optimizer`` ends without an update, after ``unscale``."""

    def update(self) -> None:
        """All optimizers of a step have stepped: a new scale may be chosen."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""


class AutocastBF16(Precision):
    """fp32 parameters, products in bfloat16 under autocast. Needs no loss scale.

    Example:
        >>> trainer = Trainer(precision="bf16")
        >>> trainer.strategy.precision.compute_dtype
        torch.bfloat16
    """

    name = "bf16"
    compute_dtype = torch.bfloat16

    def context(self, device: torch.device) -> Callable[[], AbstractContextManager[Any]] | None:
        return partial(torch.autocast, device.type, dtype=self.compute_dtype)


class AutocastFP16(AutocastBF16):
    """fp32 parameters, products in float16 under autocast, with a dynamic loss scale.

    An update whose gradients overflowed, on any rank, is skipped on all; schedules do not step then.

    Args:
        init_scale: The loss scale of the first step.
        growth_factor: What the scale is multiplied by after ``growth_interval`` finite steps.
        backoff_factor: What it is multiplied by after a step whose gradients overflowed and is skipped.
        growth_interval: Finite steps in a row before the scale grows.
        max_consecutive_skips: After so many skipped updates in a row the run ends with a diagnosis.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> trainer = Trainer(precision=AutocastFP16(init_scale=1024.0, growth_interval=500))
    """

    name = "fp16"
    compute_dtype = torch.float16
    scales = True

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        max_consecutive_skips: int = 20,
    ) -> None:
        check_arguments("AutocastFP16", max_consecutive_skips=(max_consecutive_skips, COUNT))
        self._scale = LossScale(init_scale, growth_factor, backoff_factor, growth_interval)
        self.max_consecutive_skips = max_consecutive_skips
        self._flags: dict[int, dict[torch.device, Tensor]] = {}
        self._ended: dict[int, bool] = {}

    @property
    def loss_scale(self) -> float:  # type: ignore[override]
        return self._scale.value

    @property
    def skipped_in_a_row(self) -> int:  # type: ignore[override]
        return self._scale.skipped_in_a_row

    def attach(self, device: torch.device) -> None:
        super().attach(device)
        self._scale.restart()
        self._flags.clear()
        self._ended.clear()

    def scale(self, loss: Tensor) -> Tensor:
        return loss.float() * self._scale.value  # in float16 the product could overflow itself

    def is_unscaled(self, optimizer: Optimizer) -> bool:
        return id(optimizer) in self._flags

    def unscale(self, optimizer: Optimizer) -> None:
        if id(optimizer) in self._ended:  # a second step of one optimizer is a new round
            self.update()
        flags = self._flags[id(optimizer)] = {}
        for device, gradients in by_device(optimizer).items():
            flags[device] = torch.zeros((), device=device)
            divide_and_flag(gradients, self._scale.value, flags[device])

    def overflows(self, optimizer: Optimizer) -> list[Tensor]:
        return list(self._flags[id(optimizer)].values())

    def step(self, optimizer: Optimizer) -> bool:
        overflowed = any(flag.item() > 0 for flag in self._flags.pop(id(optimizer)).values())
        self._ended[id(optimizer)] = overflowed
        if not overflowed:
            optimizer.step()
        return not overflowed

    def record(self, overflowed: bool) -> None:
        self._ended[0] = overflowed

    def skip(self, optimizer: Optimizer) -> None:
        flags = self._flags.pop(id(optimizer), {})
        self._ended[id(optimizer)] = any(flag.item() > 0 for flag in flags.values())
        self.update()

    def update(self) -> None:
        if self._ended:
            self._scale.update(any(self._ended.values()))
            self._ended.clear()

    def state_dict(self) -> dict[str, Any]:
        return self._scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:  # a checkpoint of another precision has none
            self._scale.load_state_dict(state)


class Full(Precision):
    """Parameters, inputs and products all in one dtype: ``"64"``, ``"bf16-true"``, ``"fp16-true"``.

    In 16 bits the gradients of several micro-batches are summed, and those of several ranks averaged, in
    float32, and rounded once: ``accumulate`` micro-batches give the gradient of one large batch.

    Args:
        name: What it is called in messages.
        dtype: The dtype of parameters, inputs and products; None: the one of that name.
        keep_fp32: Classes of modules, or their names, whose own parameters and buffers stay float32: norms,
            say. Steps then run under autocast, which casts where two dtypes meet. For 16-bit dtypes.
        accumulate_dtype: What micro-batches are summed in; None: float32, or ``dtype`` where that is more.
            ``dtype`` itself saves 2 bytes for each parameter while micro-batches are summed.
        reduce_dtype: What ranks are averaged in; None likewise.

    Example:
        >>> Full("64", torch.float64).convert_module(module := Net())
        >>> module.layer.weight.dtype
        torch.float64
        >>> trainer = Trainer(precision=Full("bf16-true", keep_fp32=[nn.LayerNorm]))
    """

    def __init__(
        self,
        name: str,
        dtype: torch.dtype | None = None,
        keep_fp32: Collection[type | str] = (),
        *,
        accumulate_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        self.name = name
        dtype = _DTYPES.get(name) if dtype is None else dtype
        if dtype is None:
            raise PacelineError(
                f"precision: there is no dtype of the name {name!r}",
                code="unknown-precision",
                allowed=", ".join(_DTYPES),
                meant=nearest(name, [*_DTYPES]),
                fix=f"Full({name!r}, torch.bfloat16)",
            )
        is_list = isinstance(keep_fp32, (list, tuple, set, frozenset))
        right = is_list and all(isinstance(one, (type, str)) for one in keep_fp32)
        if not right or (keep_fp32 and dtype.itemsize != 2):
            raise PacelineError(
                "keep_fp32 takes a list of classes of modules, or of their names, beside a 16-bit dtype",
                code="invalid-value",
                got=f"Full({name!r}, {dtype}, keep_fp32={keep_fp32!r})",
                fix='Full("bf16-true", keep_fp32=[nn.LayerNorm])',
            )
        self.param_dtype = self.compute_dtype = self.input_dtype = dtype
        wide = torch.promote_types(dtype, torch.float32)
        self.accumulate_dtype, self.reduce_dtype = accumulate_dtype or wide, reduce_dtype or wide
        self.keep_fp32 = tuple(keep_fp32)
        self._found: set[type | str] | None = None  # of keep_fp32, in what was converted

    def convert_module(self, module: nn.Module) -> None:
        self._found = self._found or set()
        for part in module.modules():
            # Subclasses are kept too: fully_shard makes one of each class it has sharded.
            kinds = {kind for cls in type(part).__mro__ for kind in (cls, cls.__name__)}
            kept = kinds.intersection(self.keep_fp32)
            self._found |= kept
            dtype = torch.float32 if kept else self.param_dtype
            for parameter in part.parameters(recurse=False):
                if parameter.is_floating_point() and parameter.dtype != dtype:
                    parameter.data = parameter.data.to(dtype)
            for name, buffer in part.named_buffers(recurse=False):
                if buffer.is_floating_point():  # complex ones would lose half of what they are
                    setattr(part, name, buffer.to(dtype))

    def context(self, device: torch.device) -> Callable[[], AbstractContextManager[Any]] | None:
        if not self.keep_fp32:
            return None
        missing = [] if self._found is None else [k for k in self.keep_fp32 if k not in self._found]
        if missing:
            raise PacelineError(
                "keep_fp32 gives classes of which the module has no part",
                code="part-not-found",
                got=", ".join(one if isinstance(one, str) else one.__qualname__ for one in missing),
            )
        return partial(torch.autocast, device.type, dtype=self.compute_dtype)


_DTYPES = {"64": torch.float64, "bf16-true": torch.bfloat16, "fp16-true": torch.float16}
