"""Data parallel: every rank holds the whole model, gradients are averaged while backward runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..common.argument_checks import ABOVE_ZERO_OR_NONE, SWITCH, SWITCH_OR_NONE, check_arguments
from ..errors import PacelineError, listed
from .base import parameters_of
from .distributed import Distributed
from .estimate.replicated import ReplicatedDescription
from .gradients import backward_errors
from .gradients.finite_gradients import nan_loss
from .gradients.first_step import FirstStep, arrivals, counted, in_parts
from .gradients.reduction_dtype import average_in
from .own_gradients import CHUNK, OwnGradients, note_averaged
from .step_wrapper import Dispatch
from .torch_internals import expect_every_gradient, rebuild_buckets
from .trained import TrainedChange

T = TypeVar("T")


class DDP(Distributed):
    """torch's DistributedDataParallel.

    Step 1 shows which parameters get no gradient: its gradients are averaged after its backward. Where
    all get one, the reducer takes over from step 2 on, and a parameter that is unused later is an error.
    Else the unused ones are named and every step runs as the first did; likewise where some get their
    gradient in parts, as those of a block that is used twice in a reentrant checkpoint.

    Under manual optimization there is no reducer: each ``manual_backward`` averages the gradients that it
    changed. After ``synchronise_gradients(False)`` they stay this rank's own until the next
    ``manual_backward`` after ``synchronise_gradients(True)``, or until their optimizer steps.

    In which order sums over three ranks or more are taken depends on how gradients lie in the reducer's
    buckets. torch lays them out again after the reducer's first backward, in the order in which gradients
    came. Here step 1 shows that order too, and checkpoints keep it: a resumed run adds up as it did before.
    ``static_graph`` leaves it to torch.

    Args:
        find_unused_parameters: Let torch search in every step (True) or never (False); None: step 1 shows.
        static_graph: Promise torch that every step uses the same parameters in the same way. torch does
            not check it, so it is never chosen for you; it excludes accumulation.
        broadcast_buffers: Give all ranks rank 0's buffers before each forward, as torch does. Where only
            batch norms have some, False saves that: they get them before each validation anyway.
        bucket_cap_mb: Size of the buckets in which gradients are reduced; None is torch's default, 25.
        gradient_as_bucket_view: Let gradients live in those buckets, which saves a copy of them.
        activation_checkpointing: Compute the activations of the repeated blocks again in backward:
            all (True), or all but the results of matrix products and attention (``"selective"``).
        activation_offload: Keep the activations of the repeated blocks (True), or of submodules by name
            (``["blocks.*"]``), in the host's memory until backward.

    Raises:
        PacelineError: for ``static_graph`` together with ``find_unused_parameters``.

    Example:
        >>> strategy = DDP(static_graph=True, bucket_cap_mb=50)  # Trainer(strategy=strategy, devices=8)
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
        activation_checkpointing: bool | str = False,
        activation_offload: bool | str | Sequence[str] = False,
    ) -> None:
        check_arguments(
            "DDP",
            find_unused_parameters=(find_unused_parameters, SWITCH_OR_NONE),
            static_graph=(static_graph, SWITCH),
            broadcast_buffers=(broadcast_buffers, SWITCH),
            bucket_cap_mb=(bucket_cap_mb, ABOVE_ZERO_OR_NONE),
            gradient_as_bucket_view=(gradient_as_bucket_view, SWITCH),
        )
        super().__init__(
            activation_checkpointing=activation_checkpointing, activation_offload=activation_offload
        )
        if static_graph and find_unused_parameters:
            raise PacelineError(
                "DDP: static_graph already detects unused parameters",
                code="conflicting-arguments",
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
        self._seen: FirstStep | None = None
        self._last_micro_batch = True
        self._own: OwnGradients | None = None
        self._optimizers: Sequence[Optimizer] = []
        self._order: list[str] = []

    @property
    def description(self) -> ReplicatedDescription:
        return ReplicatedDescription(
            self._options["bucket_cap_mb"], self._options["gradient_as_bucket_view"]
        )

    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        self.prepare_module(module)
        built = build_optimizers()
        # No copy: a loop that users write may build more of them later.
        self._own, self._optimizers = None, getattr(built, "optimizers", [])
        if not getattr(module, "automatic_optimization", True):
            self._own = OwnGradients(self, lambda: [parameters_of(one) for one in self._optimizers])
        elif built is not None:
            self._order = []
            self._wrap(module)
        return built

    def _wrap(self, module: nn.Module, **more: Any) -> None:
        """Wrap it; the order in which gradients come is looked at in the next step."""
        device, reduce_dtype = self.device, self.precision.reduce_dtype
        dispatch = Dispatch(module, self.precision.context(device))
        ids = None if device.type == "cpu" else [device]
        if self._wrapped is None:
            self._wrapped = DistributedDataParallel(dispatch, device_ids=ids, **self._options, **more)
        else:  # step functions hold this object: it stays, with another reducer
            DistributedDataParallel.__init__(
                self._wrapped, dispatch, device_ids=ids, **self._options, **more
            )
        # The argument is deprecated.
        self._wrapped.broadcast_buffers = self._broadcast_buffers
        if any(p.dtype != torch.promote_types(p.dtype, reduce_dtype) for p in module.parameters()):
            self._wrapped.register_comm_hook(reduce_dtype, average_in)
        self._first, self._reducer_works = not self._options["static_graph"], not self._looks
        self._seen = None
        self.synchronise_gradients(True)

    def trainable_changed(self, module: nn.Module, change: TrainedChange) -> None:
        self._broadcast_tensors([module.get_parameter(name) for name in change.placed])
        if self._wrapped is None or not (
            change.unfrozen or change.frozen or change.placed or change.removed
        ):
            return
        self._wrap(module, init_sync=False)  # ranks have the same weights, and buffers may be their own
        self.load_state_dict({"order": self._order})  # of a resumed run

    def _trained(self) -> dict[str, Tensor]:
        assert self._wrapped is not None
        return {n: p for n, p in self._wrapped.module.module.named_parameters() if p.requires_grad}

    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        if name != "training_step" or self._wrapped is None:
            return super().step_function(module, name)
        return partial(self._wrapped, name)

    def synchronise_gradients(self, enabled: bool) -> None:
        self._last_micro_batch = enabled
        if self._own is not None:
            self._own.averages = enabled
        if self._wrapped is None:
            return
        if not enabled and self._options["static_graph"]:
            raise PacelineError(
                "DDP: a static graph excludes accumulation",
                code="conflicting-arguments",
                got="static_graph=True and several micro-batches in a step",
                fix="leave static_graph out",
            )
        self._wrapped.require_backward_grad_sync = enabled and self._reduces_in_backward

    @property
    def _sums_wide(self) -> bool:
        """Whether micro-batches are summed in another dtype than the reducer's buckets have."""
        return self._accumulation is not None and self._accumulation.is_open

    @property
    def _reduces_in_backward(self) -> bool:
        return self._reducer_works and not self._sums_wide

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        if self._wrapped is None:
            super().backward(loss, retain_graph)
            if self._own is not None:
                self._own.after_backward()
            return
        again = self._wrapped.module.went_backward
        self._wrapped.module.went_backward = True
        if not self._last_micro_batch:
            super().backward(loss, retain_graph)
        elif self._first:
            self._first_backward(loss, retain_graph, again)
        else:
            self._reducing_backward(loss, retain_graph)
            if again or not self._reduces_in_backward:
                # The reducer takes part in the first backward alone; what is averaged stays as it is.
                self.average_gradients(list(self._trained().values()), CHUNK)

    def _reducing_backward(self, loss: Tensor, retain_graph: bool) -> None:
        try:
            super().backward(loss, retain_graph)
        except RuntimeError as error:
            options = f"DDP(find_unused_parameters={self._options['find_unused_parameters']})"
            raise backward_errors.of_ddp(error, [*self._trained()], options) or error from None

    def _first_backward(self, loss: Tensor, retain_graph: bool, again: bool) -> None:
        """One of step 1, which shows in which order gradients come, and whether each comes once.

        Raises:
            PacelineError: where one comes in parts, and the reducer is to work from step 1 on.
        """
        trained = self._trained()
        with arrivals(trained) as came:
            self._reducing_backward(loss, retain_graph)
        if not self._reduces_in_backward or again:
            used = self.average_gradients(list(trained.values()), CHUNK)
        twice = in_parts(came)
        if self._looks:
            flags = torch.tensor([int(name in twice) for name in trained], device="cpu")
            several = self.collectives.all_reduce(flags, "max").tolist()
            missed = [name for name, found in zip(trained, used, strict=True) if not found]
            found = FirstStep(came, missed, [n for n, more in zip(trained, several, strict=True) if more])
            self._seen = found if self._seen is None else self._seen.add(found)
        elif twice and self.environment.world_size > 1:
            raise PacelineError(
                f"{counted(twice)} a gradient more than once within a backward, and DDP's reducer "
                "averages the first part alone",
                code="backward-twice",
                got=listed(twice),
                fix="checkpoint(..., use_reentrant=False); or leave find_unused_parameters out",
            )

    def stand_in_loss(self, module: nn.Module) -> Tensor | None:
        searched = self._options["find_unused_parameters"] or self._options["static_graph"]
        return None if searched or self.settings.sync_batchnorm else nan_loss(module)

    def _end_step(self) -> None:
        """The step is over; the first one has shown whether the reducer can do the others."""
        seen, self._seen, self._first = self._seen, None, False
        if seen is None:
            return
        if seen.suits_the_reducer:
            # On this rank some may have had none.
            self._use_reducer([*dict.fromkeys([*seen.came, *self._trained()])])
        else:
            self.settings.log_line(seen.line())

    def _use_reducer(self, order: list[str]) -> None:
        """Let the reducer work from here on, with buckets as for gradients that come in this order."""
        assert self._wrapped is not None
        self._reducer_works, self._order = True, order
        self.synchronise_gradients(True)
        trained = self._trained()
        kept = {name: p.grad for name, p in trained.items()}
        for parameter in trained.values():
            parameter.grad = None
        expect_every_gradient(self._wrapped)
        # autograd takes what was computed last first.
        total = sum((trained[name] * 0).sum() for name in reversed(order))
        assert isinstance(total, Tensor)
        total.backward()
        rebuild_buckets(self._wrapped)
        for name, parameter in trained.items():
            parameter.grad = kept[name]

    def state_dict(self) -> dict[str, Any]:
        return {"order": self._order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order = list(state["order"])
        if self._looks and self._wrapped is not None and set(self._order) == set(self._trained()):
            self._first = False
            self._use_reducer(self._order)

    def unscale(self, optimizer: Optimizer) -> None:
        if self._own is not None:
            self._own.before_update(self._optimizers.index(optimizer))
        super().unscale(optimizer)

    def update(self, optimizer: Optimizer) -> bool:
        applied = super().update(optimizer)
        if self._own is not None:  # unscaled and clipped, on all ranks alike
            note_averaged(parameters_of(optimizer))
        return applied

    def step(self, optimizer: Optimizer) -> bool:
        if self._wrapped is not None and self.environment.world_size > 1:
            if not self._wrapped.module.went_backward:
                raise PacelineError(
                    "backward did not call super().backward(loss), which averages gradients over the ranks",
                    code="override-incomplete",
                    fix="super().backward(loss) in the place of loss.backward()",
                )
            if self._reducer_works and self._looks:
                self._check_reduced()
        applied = super().step(optimizer)
        self._end_step()
        return applied

    def skip(self, optimizer: Optimizer) -> None:
        super().skip(optimizer)
        self._end_step()

    def _check_reduced(self) -> None:
        """A parameter unused in a step keeps its bucket from being reduced: ranks would drift apart."""
        assert self._wrapped is not None
        try:
            rebuild_buckets(self._wrapped)  # sees first that all buckets were reduced
        except RuntimeError as error:
            if "finished reduction" not in str(error):
                raise
            names = [n for n, p in self._wrapped.module.module.named_parameters() if p.requires_grad]
            named = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
            unused = [names[int(index)] for index in named[1].split()] if named else []
            raise PacelineError(
                f"{counted(unused)} no gradient in this step's last backward, and did in step 1",
                code="unused-parameters",
                got=listed(unused),
                fix="strategy=DDP(find_unused_parameters=True) of paceline.strategies looks in every step",
            ) from None

    def close(self) -> None:
        super().close()
        self._wrapped, self._own, self._optimizers = None, None, []
