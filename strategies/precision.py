"""Precision plugins: which dtype parameters, computation and gradients have.

They mean the same under every strategy. Each is a small object whose verbs default to doing nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import PacelineError, nearest
from .torch_internals import overflow_flags, skips_by_itself


class Precision:
    """Full fp32 precision, and the verbs the others override.

    Example:
        >>> class Clamped(Precision):
        ...     name = "clamped"
        ...     def scale(self, loss):
        ...         return loss.clamp(max=10.0)
        >>> trainer = Trainer(precision=Clamped())
    """

    name = "32"
    param_dtype: torch.dtype = torch.float32
    """The dtype the parameters are kept and updated in."""
    compute_dtype: torch.dtype = torch.float32
    """The dtype of matrix products."""
    input_dtype: torch.dtype | None = None
    """The dtype floating inputs are cast to; None leaves them as they are."""

    scales: bool = False
    """Whether ``scale`` and ``unscale`` do anything."""

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

    def overflows(self, optimizer: Optimizer) -> list[Tensor]:
        """The flags ``unscale`` set for gradients that are not finite; empty where nothing is scaled."""
        return []

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
    """fp32 parameters, products in float16 under autocast, with a gradient scaler.

    Args:
        init_scale: The loss scale of the first step.
        growth_factor: What the scale is multiplied by after ``growth_interval`` finite steps.
        backoff_factor: What it is multiplied by after a step whose gradients overflowed and is skipped.
        growth_interval: Finite steps in a row before the scale grows.

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
    ) -> None:
        self._settings = {
            "init_scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
            "growth_interval": growth_interval,
        }
        self._stepped: set[int] = set()

    def attach(self, device: torch.device) -> None:
        super().attach(device)
        settings: dict[str, Any] = self._settings
        self.scaler = torch.amp.GradScaler(device.type, **settings)
        self._stepped.clear()

    def scale(self, loss: Tensor) -> Tensor:
        return self.scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        if id(optimizer) in self._stepped:  # a second step of one optimizer is a new round
            self.update()
        self.scaler.unscale_(optimizer)

    def overflows(self, optimizer: Optimizer) -> list[Tensor]:
        return overflow_flags(self.scaler, optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        # The scaler does not tell whether it stepped; the optimizer's own hook does, with no sync.
        applied: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: applied.append(True))
        try:
            self.scaler.step(optimizer)
        finally:
            hook.remove()
        self._stepped.add(id(optimizer))
        if skips_by_itself(optimizer):
            return not any(found.item() for found in self.overflows(optimizer))
        return bool(applied)

    def skip(self, optimizer: Optimizer) -> None:
        self._stepped.add(id(optimizer))
        self.update()

    def update(self) -> None:
        if self._stepped:
            self.scaler.update()
            self._stepped.clear()

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:  # a checkpoint of another precision has none
            self.scaler.load_state_dict(state)


class Full(Precision):
    """Parameters, inputs and products all in one dtype: ``"64"``, ``"bf16-true"``, ``"fp16-true"``.

    Args:
        name: What it is called in messages.
        dtype: The dtype of parameters, inputs and products; None: the one of that name.
        keep_fp32: Classes of modules, or their names, whose own parameters and buffers stay float32: norms,
            say. Steps then run under autocast, which casts where two dtypes meet. For 16-bit dtypes.

    Example:
        >>> Full("64", torch.float64).convert_module(module := Net())
        >>> module.layer.weight.dtype
        torch.float64
        >>> trainer = Trainer(precision=Full("bf16-true", keep_fp32=[nn.LayerNorm]))
    """

    def __init__(
        self, name: str, dtype: torch.dtype | None = None, keep_fp32: Collection[type | str] = ()
    ) -> None:
        self.name = name
        dtype = _DTYPES.get(name) if dtype is None else dtype
        if dtype is None:
            raise PacelineError(
                f"precision: there is no dtype of the name {name!r}",
                allowed=", ".join(_DTYPES),
                meant=nearest(name, [*_DTYPES]),
                fix=f"Full({name!r}, torch.bfloat16)",
            )
        is_list = isinstance(keep_fp32, (list, tuple, set, frozenset))
        right = is_list and all(isinstance(one, (type, str)) for one in keep_fp32)
        if not right or (keep_fp32 and dtype.itemsize != 2):
            raise PacelineError(
                "keep_fp32 takes a list of classes of modules, or of their names, beside a 16-bit dtype",
                got=f"Full({name!r}, {dtype}, keep_fp32={keep_fp32!r})",
                fix='Full("bf16-true", keep_fp32=[nn.LayerNorm])',
            )
        self.param_dtype = self.compute_dtype = self.input_dtype = dtype
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
                got=", ".join(one if isinstance(one, str) else one.__qualname__ for one in missing),
            )
        return partial(torch.autocast, device.type, dtype=self.compute_dtype)


_DTYPES = {"64": torch.float64, "bf16-true": torch.bfloat16, "fp16-true": torch.float16}
_BUILDERS: dict[str, Callable[[], Precision]] = {
    "32": Precision,
    "bf16": AutocastBF16,
    "fp16": AutocastFP16,
    **{name: partial(Full, name) for name in _DTYPES},
}
_READ_TOO = {
    "32-true": "32",
    "fp32": "32",
    "float32": "32",
    "bf16-mixed": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
    "16-true": "fp16-true",
    "no": "32",
    "64-true": "64",
    "fp64": "64",
    "float64": "64",
    "double": "64",
    "bfloat16": "bf16",
    "float16": "fp16",
}
PRECISIONS = tuple(_BUILDERS)


def make_precision(precision: str | int | Precision) -> Precision:
    """The plugin of that name; an object of ``Precision`` is taken as it is.

    Args:
        precision: A name of ``PRECISIONS``, one of its usual synonyms (``16``, ``"bf16-mixed"``), or an
            object.

    Returns:
        The object, not yet attached to a device.

    Raises:
        PacelineError: for a name that is none.

    Example:
        >>> make_precision(16).name
        'fp16'
    """
    if isinstance(precision, Precision):
        return precision
    name = str(precision)
    build = _BUILDERS.get(_READ_TOO.get(name, name))
    if build is None:
        raise PacelineError(
            f"precision: there is no {name!r}",
            got=precision,
            allowed=", ".join(PRECISIONS) + ", or an object of paceline.strategies.Precision",
            meant=nearest(name, [*PRECISIONS, *_READ_TOO]),
        )
    return build()
