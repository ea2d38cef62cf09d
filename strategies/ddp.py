"""Data parallel: every rank holds the whole model, gradients are averaged while backward runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..errors import PacelineError
from .base import parameters_of
from .dispatch import Dispatch
from .distributed import Distributed

T = TypeVar("T")
_SHOWN = 6
_CHUNK = 25 * 2**20  # as torch's buckets


class DDP(Distributed):
    """torch's DistributedDataParallel.

    Step 1 shows which parameters get no gradient: its gradients are averaged behind its backward. Where
    all get one, the reducer takes over from step 2 on, and a parameter that is left out later is an error.
    Else the unused ones are named and every step goes on as the first. Under manual optimization there is
    no reducer: each ``optimizer.step()`` averages the gradients of its own parameters.

    Args:
        find_unused_parameters: Let torch search in every step (True) or never (False); None: step 1 shows.
        static_graph: Promise torch that every step uses the same parameters in the same way. torch does
            not check it, so it is never chosen for you; it excludes accumulation.
        broadcast_buffers: Give all ranks rank 0's buffers before each forward, as torch does. Where only
            batch norms have some, False saves that: they get them before each validation anyway.
        bucket_cap_mb: Size of the buckets in which gradients are reduced; None is torch's default, 25.
        gradient_as_bucket_view: Let gradients live in those buckets, which saves a copy of them.
        activation_checkpointing: Compute the activations of the repeated blocks again in backward.
    """

    name = "ddp"

    def __init__(
        self,
        *,
        find_unused_parameters: bool | None = None,
        static_graph: bool = False,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = True,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__(activation_checkpointing=activation_checkpointing)
        if static_graph and find_unused_parameters:
            raise PacelineError(
                "DDP: a static graph finds its unused parameters by itself",
                got="static_graph=True, find_unused_parameters=True",
                fix="give one of the two",
            )
        self._options: dict[str, Any] = {
            "find_unused_parameters": bool(find_unused_parameters),
            "static_graph": static_graph,
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
        }
        self._broadcast_buffers = broadcast_buffers
        self._looks = find_unused_parameters is None and not static_graph
        self._wrapped: DistributedDataParallel | None = None
        self._reducer_works = True
        self._first = False
        self._last_micro_batch = True
        self._manual = False

    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        self.place(module)
        built = build_optimizers()
        self._manual = not getattr(module, "automatic_optimization", True)
        if built is not None and not self._manual:
            device = self.device
            self._wrapped = DistributedDataParallel(
                Dispatch(module, self.precision.context(device)),
                device_ids=None if device.type == "cpu" else [device],
                **self._options,
            )
            # The argument is deprecated in torch 2.13, and its successor is not in 2.10.
            self._wrapped.broadcast_buffers = self._broadcast_buffers
            self._first, self._reducer_works = self._looks, not self._looks
            self.synchronise_gradients(True)
        return built

    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        if name != "training_step" or self._wrapped is None:
            return super().step_function(module, name)
        return partial(self._wrapped, name)

    def synchronise_gradients(self, enabled: bool) -> None:
        self._last_micro_batch = enabled
        if self._wrapped is None:
            return
        if not enabled and self._options["static_graph"]:
            raise PacelineError(
                "DDP: a static graph excludes accumulation",
                got="static_graph=True and several micro-batches in a step",
                fix="leave static_graph out",
            )
        self._wrapped.require_backward_grad_sync = enabled and self._reducer_works

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if self._wrapped is not None and self._last_micro_batch and not self._reducer_works:
            named = [(n, p) for n, p in self._wrapped.module.module.named_parameters() if p.requires_grad]
            used = self.average_gradients([p for _, p in named], _CHUNK)
            if self._first:
                self._look([name for (name, _), found in zip(named, used, strict=True) if not found])

    def _look(self, unused: list[str]) -> None:
        """Step 1 has shown which parameters are used; all ranks see the same."""
        self._first = False
        if not unused:
            self._reducer_works = True
            self.synchronise_gradients(True)
            return
        self.say(
            f"{_counted(unused)} no gradient in step 1, so gradients are averaged behind the backward, "
            f"which is slower: {_listed(unused)}; freeze them with requires_grad_(False)"
        )

    def unscale(self, optimizer: Optimizer) -> None:
        if self._manual:
            self.average_gradients(parameters_of(optimizer))
        super().unscale(optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        if self._reducer_works and self._looks and self._wrapped is not None:
            self._check_reduced()
        return super().step(optimizer)

    def _check_reduced(self) -> None:
        """A parameter left out of a step keeps its bucket from being reduced: ranks would drift apart."""
        assert self._wrapped is not None
        try:
            self._wrapped.reducer._rebuild_buckets()  # sees first that all buckets were reduced
        except RuntimeError as error:
            if "finished reduction" not in str(error):
                raise
            names = [n for n, p in self._wrapped.module.module.named_parameters() if p.requires_grad]
            told = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
            unused = [names[int(index)] for index in told[1].split()] if told else []
            raise PacelineError(
                f"{_counted(unused)} no gradient in this step's last backward, and did in step 1",
                got=_listed(unused),
                fix="strategy=DDP(find_unused_parameters=True) of paceline.strategies looks in every step",
            ) from None

    def close(self) -> None:
        super().close()
        self._wrapped = None


def _counted(names: list[str]) -> str:
    return f"{len(names)} parameter{'s get' if len(names) > 1 else ' gets'}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
