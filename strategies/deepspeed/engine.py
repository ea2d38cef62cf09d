"""DeepSpeed ZeRO, stages 0 to 3: optimizer state, gradients and parameters spread over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...common.argument_checks import SWITCH, check_arguments
from ...errors import PacelineError
from ..blocks.materialise import is_on_meta
from ..distributed import Distributed
from ..dtypes.precision import Precision
from ..gradients import backward_errors
from ..gradients.finite_gradients import nan_loss
from ..launch.environment import Environment
from ..module_checks import refuse_compiled_copies, refuse_frozen_groups, refuse_scalars, refuse_sharded
from ..step_wrapper import Dispatch
from ..tensors import tensor_state as state
from ..tensors.parameter_access import ParameterAccess, partitioned
from ..torch_internals import multiply_each
from ..trained import TrainedChange
from . import internals, nvme, zero_matrices, zero_state
from .config import make_config, read_config
from .estimate import ZeroDescription
from .library import check_installed, import_deepspeed
from .manual_gradients import ManualGradients
from .weights import ZeroWeights
from .written_parameters import WrittenParameters

T = TypeVar("T")


class _NoUpdate(Exception):
    """Leaves the engine's step before its update."""


class DeepSpeed(Distributed):
    """DeepSpeed's ZeRO engine over the optimizer of ``configure_optimizers``.

    After a run a module has whole parameters again; under stage 3 it stays partitioned until the next
    run, and ``Trainer.export`` and checkpoints have the whole of it. Gradients are DeepSpeed's own: in
    ``on_before_optimizer_step`` read them with ``trainer.strategy.weights.full_gradients(module)``.

    Args:
        stage: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters are spread. None takes
            it from ``config``, else 2.
        config: A DeepSpeed configuration, a dict or the path of a JSON file. Its batch sizes,
            clipping, precision and optimizers must agree with the run, or be ``"auto"``.
        offload: Keep the optimizer's state (and under stage 3 the parameters) in the host's memory.
        activation_checkpointing: Compute the activations of the repeated blocks again in backward:
            all (True), or all but the results of matrix products and attention (``"selective"``).
        activation_offload: Keep the activations of the repeated blocks (True), or of submodules by name
            (``["blocks.*"]``), in the host's memory until backward.

    Raises:
        PacelineError: for a stage that is none, and a configuration that cannot be read.

    Example:
        >>> strategy = DeepSpeed(3, {"zero_optimization": {"overlap_comm": True}}, offload=True)
        >>> strategy.name  # Trainer(strategy=strategy, devices=8)
        'deepspeed_stage_3_offload'
    """

    skips_by_itself = True
    weights: ZeroWeights

    def __init__(
        self,
        stage: int | None = None,
        config: dict[str, Any] | str | Path | None = None,
        *,
        offload: bool = False,
        activation_checkpointing: bool | str = False,
        activation_offload: bool | str | Sequence[str] = False,
    ) -> None:
        check_arguments("DeepSpeed", offload=(offload, SWITCH))
        super().__init__(
            activation_checkpointing=activation_checkpointing, activation_offload=activation_offload
        )
        self.config = read_config(config)
        stated = self.config.get("zero_optimization", {}).get("stage", 2)
        self.stage: int = stated if stage is None else stage
        known = type(self.stage) is int and 0 <= self.stage <= 3
        if not known or (offload and not self.stage):
            raise PacelineError(
                "DeepSpeed: there is no such stage" + (" to offload" if offload else ""),
                code="unknown-choice",
                got=self.stage,
                allowed="1, 2, 3" if offload else "0, 1, 2, 3",
            )
        self.offload = offload
        self.name = f"deepspeed_stage_{self.stage}" + ("_offload" if offload else "")
        self._engine: Any = None
        self._module: nn.Module | None = None
        self._clip: tuple[float | None, float | None] = (None, None)
        self._factor: Tensor | float = 1.0
        self._skips = False
        self._manual: ManualGradients | None = None

    @property
    def description(self) -> ZeroDescription:
        return ZeroDescription(self.stage, self.offload, self.config)

    def attach(self, environment: Environment, precision: Precision) -> None:
        make_config(self.config, self.stage, self.offload, precision, None, 1)
        nvme.check_config(self.config, self.stage)
        # The engine takes contiguous parameters alone.
        self.settings = replace(self.settings, channels_last=False)
        super().attach(environment, precision)
        self.weights = ZeroWeights(self.collectives, self.stage, self.offload, self._factor_left)
        if self.stage == 3:
            self.around_hooks = ParameterAccess(self.name, partitioned, lambda: self._module)

    def check_training(self) -> None:
        check_installed()

    def setup(self, module: nn.Module, build_optimizers: Callable[[], T]) -> T:
        kept = vars(module).pop(zero_state.HELD, None)
        if kept is not None:
            zero_state.release(kept.engine, module, kept.carried, kept.hooks)
        deepspeed = import_deepspeed(self.device)
        if nvme.is_used(self.config):
            nvme.build_library()
        trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
        config = make_config(
            self.config, self.stage, self.offload, self.precision, self.settings, max(1, trained)
        )
        refuse_scalars(module, self.name)
        refuse_sharded(module)
        if self.stage == 3:
            refuse_compiled_copies(module, self.name)
        late = self.stage == 3 and is_on_meta(module)
        if late:
            zero_state.materialise_in_shards(module, self.precision.convert_module, config)
        self.prepare_module(module, in_shards=late)
        built = build_optimizers()
        if built is None:  # nothing is trained: ranks compute on their own
            return built
        given: Any = built
        optimizer = zero_matrices.only_optimizer(self.name, given.optimizers, config)
        names = state.parameter_names(module)
        refuse_frozen_groups(self.name, optimizer, names)
        groups = [[names[id(p)] for p in g["params"]] for g in optimizer.param_groups]
        carried = {} if late else zero_state.remember(module)
        root = Dispatch(module, self.precision.context(self.device))
        self._engine, *_ = deepspeed.initialize(
            model=root,
            optimizer=optimizer,
            config=config,
            dist_init_required=False,
        )
        self._module, self._carried = module, carried
        self.weights.begin(self._engine, module, groups)
        self._written = WrittenParameters(self._engine)
        self._hooks = zero_state.refuse_state_dicts(module) if self.stage == 3 else []
        root.lasting = () if self.stage == 3 else None
        self._manual = ManualGradients(self, self.stage, module)
        if self.stage == 0:
            internals.clip_reduced_with(self._engine, self._clip_reduced)
        else:
            zero_matrices.provide(self._engine, optimizer)
            internals.unscale_with(self._engine, lambda unscale: partial(self._unscale_and_clip, unscale))
        return built

    def check_unfreezing(self) -> None:
        raise PacelineError(
            f"strategy {self.name!r} fixes at the start which parameters are trained",
            code="trained-parameters-fixed",
            fix="strategy='fsdp' or 'ddp'; or freeze them for the whole run",
        )

    def trainable_changed(self, module: nn.Module, change: TrainedChange) -> None:
        if self._engine is not None:  # it could not be closed with a group that it does not know
            del self._engine.basic_optimizer.param_groups[len(self.weights.groups) :]
        super().trainable_changed(module, change)

    def step_function(self, module: nn.Module, name: str) -> Callable[..., Any]:
        return super().step_function(module, name) if self._engine is None else partial(self._engine, name)

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        if self.stage:
            internals.allow_backward(self._engine)
        if self.precision.scales:
            loss = self.precision.scale(loss)
        assert self._manual is not None
        with backward_errors.of_deepspeed(self.name, self.weights.named), self._manual.backward():
            self._engine.backward(loss, retain_graph=retain_graph, scale_wrt_gas=False)

    def synchronise_gradients(self, enabled: bool) -> None:
        if self._manual is not None:
            self._manual.own.averages = enabled

    def begin_accumulation(self) -> None:
        if self.stage < 2:  # there gradients stay in the parameters until the engine's step
            super().begin_accumulation()

    def stand_in_loss(self, module: nn.Module) -> Tensor | None:
        return None if self.stage == 3 or self.settings.sync_batchnorm else nan_loss(module)

    def unscale(self, optimizer: Optimizer) -> None:
        """Gradients are unscaled by the engine's own step; at stages 0 and 1 they can be seen before."""
        if self._manual is not None:
            self._manual.reduce()

    def find_nonfinite(self, optimizer: Optimizer, found: Tensor) -> bool:
        return False

    def multiply_gradients(self, optimizer: Optimizer, factor: Tensor | float) -> None:
        self._factor = self._factor * factor

    def _factor_left(self) -> Tensor | float:
        """What the engine's gradients are still to be multiplied by."""
        return self._factor / self.precision.loss_scale

    def clip(self, optimizer: Optimizer, norm: float | None, value: float | None) -> Tensor | None:
        self._clip = (norm, value)
        return None

    def update(self, optimizer: Optimizer) -> bool:
        return self.step(optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        engine, norm = self._engine, self._clip[0]
        assert self._manual is not None
        self._manual.before_update()
        self._written.take_up()
        internals.clip_norm_of_next_step(engine, self.stage, norm)
        factor = self._factor_left()
        if self.stage:
            engine.optimizer.loss_scale = 1.0 / float(factor)
        elif not isinstance(factor, float) or factor != 1.0:
            grads = [p.grad for p in engine.module.parameters() if p.grad is not None]
            multiply_each(grads, factor)
        try:
            engine.step()
            applied: bool = engine.was_step_applied()
        except _NoUpdate:
            engine.zero_grad()
            applied = False
        finally:
            self._clip, self._factor = (None, None), 1.0
            if self.stage:
                engine.optimizer.loss_scale = 1.0
            if self.stage == 3:
                internals.forget_gradients(engine)
        self.precision.record(overflowed=not applied and not self._skips)
        self.precision.update()
        return applied

    def skip(self, optimizer: Optimizer) -> None:
        self._skips = True
        try:
            with internals.overflow_found(self._engine, self.stage):
                self.step(optimizer)
        finally:
            self._skips = False

    def _clip_reduced(self) -> None:
        """In place of the engine's own clipping at stage 0, after its reduction."""
        norm, value = self._clip
        parameters = [p for p in self._engine.module.parameters() if p.grad is not None]
        if self._skips:
            raise _NoUpdate
        checks = self.settings.skip_nonfinite or self.precision.scales
        if checks and not all(bool(torch.isfinite(p.grad).all()) for p in parameters):
            raise _NoUpdate
        if norm is not None:
            nn.utils.clip_grad_norm_(parameters, norm)
        if value is not None:
            nn.utils.clip_grad_value_(parameters, value)

    def _unscale_and_clip(self, unscale: Callable[[Any, Any], None], which: Any, norm: Any) -> None:
        """Around the engine's own at stages 1 to 3: clipping by value comes after it."""
        self._written.take_up_group(which)
        unscale(which, norm)
        value = self._clip[1]
        if value is not None:
            for gradient in internals.flat_gradients(self._engine, self.stage, which):
                gradient.data.clamp_(-value, value)

    def close(self) -> None:
        super().close()
        if self._manual is not None:
            self._manual.show()
        if self._engine is not None and self._module is not None:
            if self.stage == 3:
                held = zero_state.Held(self._engine, self._carried, self._hooks)
                vars(self._module)[zero_state.HELD] = held
            else:
                zero_state.release(self._engine, self._module, self._carried)
        self._engine = self._module = self._manual = None
        self.weights.end()
