"""LowPrecisionState: an optimizer whose moments are kept in bfloat16 between steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..common.argument_checks import COUNT, SEED, check_arguments, one_of
from ..common.chunks import in_chunks
from ..errors import PacelineError

_LOW = torch.bfloat16
_STEPS = "rounded_steps"
_CHUNK = 64 * 2**20
_LOW_BITS = 16  # of a float32, that a bfloat16 has not


class LowPrecisionState(Optimizer):
    """Keeps an optimizer's moments in bfloat16 between steps: half of their memory.

    In a step they are widened to their parameter's dtype, updated, and rounded again, some parameters at a
    time. So that is for optimizers that update each parameter by itself, as torch's do (but LBFGS), and
    keep nothing that counts for all of them.

    Rounding is stochastic: a moment that changes by less than half a unit in its last place, as with
    ``betas=(0.9, 0.999)`` the second one does in nearly every step, would never change if it were rounded
    to the nearest. What is drawn depends on the seed, the step and the parameter's position alone: a run
    that resumes draws the same, and no other generator is touched.

    Args:
        optimizer: Its parameter groups become this one's too, and it must not be used by itself any more.
        rounding: ``"stochastic"``, or ``"nearest"``, for moments that change by 1 % in a step or more.
        seed: Of the stochastic rounding.
        chunk_bytes: Of widened moments at a time, at least one parameter's.

    Raises:
        PacelineError: for arguments that are not right, and for an optimizer that needs a closure.

    Example:
        >>> optimizer = LowPrecisionState(torch.optim.SGD(Net().parameters(), lr=0.1, momentum=0.9))
        >>> optimizer.param_groups[0]["lr"]
        0.1
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        rounding: str = "stochastic",
        seed: int = 0,
        chunk_bytes: int = _CHUNK,
    ) -> None:
        check_arguments(
            "LowPrecisionState",
            rounding=(rounding, one_of("stochastic", "nearest")),
            seed=(seed, SEED),
            chunk_bytes=(chunk_bytes, COUNT),
        )
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, LowPrecisionState):
            raise PacelineError(
                "LowPrecisionState: this is no optimizer whose state it could keep",
                code="wrong-object",
                got=type(optimizer).__name__,
                fix="LowPrecisionState(torch.optim.AdamW(self.parameters(), lr=...))",
            )
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise PacelineError(
                f"LowPrecisionState: {type(optimizer).__name__} evaluates the loss itself, "
                "and its state is not of one parameter each",
                code="optimizer-not-supported",
                fix="use it as it is",
            )
        if rounding == "stochastic":
            for group in optimizer.param_groups:
                group.setdefault(_STEPS, 0)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer, self.state = optimizer, optimizer.state
        self._rounding, self._seed, self._chunk = rounding, seed, chunk_bytes

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient.

        Args:
            closure: Computes the loss and the gradients again, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        inner = self.optimizer
        inner.state = self.state  # strategies and checkpoints replace it
        # How a fused one learns of gradients that are not finite.
        for flag in ("found_inf", "grad_scale"):
            if hasattr(self, flag):
                setattr(inner, flag, getattr(self, flag))
        position = 0
        for group in self.param_groups:
            every = group["params"]
            if every and _STEPS in group:
                group[_STEPS] += 1
            inner.param_groups = [group]
            try:
                for chunk in in_chunks(every, self._bytes_of_moments, self._chunk):
                    group["params"] = chunk
                    low = [self._widen(parameter) for parameter in chunk]
                    inner.step()
                    for parameter, kept in zip(chunk, low, strict=True):
                        seed = _mixed(self._seed, group[_STEPS], position) if _STEPS in group else None
                        self._narrow(parameter, kept, seed)
                        position += 1
            finally:
                group["params"] = every
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave; moments in another dtype are rounded to the nearest."""
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        parameters = dict(zip(numbers, own, strict=False))
        moments: dict[Any, dict[str, Tensor]] = {number: {} for number in parameters}
        rest: dict[Any, dict[str, Any]] = {}
        for number, state in state_dict["state"].items():
            for key, value in state.items():
                is_moment = number in parameters and _is_moment(value, parameters[number])
                (moments if is_moment else rest).setdefault(number, {})[key] = value
        super().load_state_dict({**state_dict, "state": rest})  # it would widen all moments at once
        for number, found in moments.items():
            for key, value in found.items():
                self.state[parameters[number]][key] = value.to(parameters[number].device, _LOW)

    def _bytes_of_moments(self, parameter: Tensor) -> int:
        """On this rank; at least as many as the parameter has."""
        return max(1, sum(1 for _ in self._moments(parameter))) * _local(parameter).nbytes

    def _moments(self, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        found = self.state.get(parameter, {}).items()
        return ((key, value) for key, value in found if _is_moment(value, parameter))

    def _widen(self, parameter: Tensor) -> dict[str, Tensor]:
        """Widen its moments; what was there, to be written to again."""
        low = dict(self._moments(parameter))
        for key, value in low.items():
            self.state[parameter][key] = value.to(parameter.dtype)
        return {key: value for key, value in low.items() if value.dtype == _LOW}

    def _narrow(self, parameter: Tensor, low: dict[str, Tensor], seed: int | None) -> None:
        """Round its moments, to the nearest without a seed."""
        generator = None
        for key, value in sorted(self._moments(parameter)):  # a state that was loaded has another order
            if value.dtype == _LOW:
                continue
            rounded = low[key] if key in low else torch.empty_like(value, dtype=_LOW)
            plain = _local(value).float()
            if seed is not None:
                generator = generator or torch.Generator(plain.device).manual_seed(seed)
                plain = _rounded_stochastically(plain, generator)
            _local(rounded).copy_(plain)
            self.state[parameter][key] = rounded

    def __getstate__(self) -> dict[str, Any]:
        own = ("optimizer", "_rounding", "_seed", "_chunk")
        return super().__getstate__() | {name: vars(self)[name] for name in own}


def _is_moment(value: Any, parameter: Tensor) -> bool:
    """Whether it is kept as low as that: wider floating-point numbers, one for each of the parameter's."""
    if parameter.dtype.itemsize <= _LOW.itemsize or not isinstance(value, Tensor):
        return False
    return value.ndim > 0 and value.shape == parameter.shape and value.is_floating_point()


def _rounded_stochastically(values: Tensor, generator: torch.Generator) -> Tensor:
    """Float32 values that a bfloat16 holds: either neighbour, the nearer one more probably."""
    noise = torch.randint(
        1 << _LOW_BITS, values.shape, generator=generator, dtype=torch.int32, device=values.device
    )
    noise += values.contiguous().view(torch.int32)
    return noise.bitwise_and_(-1 << _LOW_BITS).view(torch.float32)


def _mixed(*numbers: int) -> int:
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest()) >> 1


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a ``DTensor``, the same memory; another tensor as it is."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
