"""One optimizer step: its micro-batches, then one update."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor

from ...common.faultpoints import with_faultpoint
from ..faults.nan_trace import FailedStep, Origin, find_origin
from ..faults.nonfinite import Guard
from ..faults.overflow import Overflows
from ..module import is_overridden
from ..runtime.compilation import uncompiled
from ..runtime.discard_effects import nothing_kept
from ..utils.functions import positional_arguments, source_of
from .automatic_optimizer import AutomaticOptimizer
from .fit_context import FitContext
from .loss_weights import LossWeights
from .manual_optimizer import refuse_own_method
from .replicas import SameSamples
from .step_output import log_evaluation_output, read_training_output
from .steps_without_loss import StepsWithoutLoss


class OptimizerStep:
    """Everything a step needs is looked up here, once.

    Attributes:
        before_step: Called with the trainer and the micro-batches.
        computes_gradients: Whether the step under way still computes gradients, and has used none of them.
    """

    def __init__(self, context: FitContext) -> None:
        module, strategy, settings = context.module, context.strategy, context.settings
        self.context, self.trainer, self.strategy = context, context.trainer, strategy
        self.state, self.step, self.guard = context.state, context.step, context.guard
        self.store, self.optimizer = context.logger.train, context.optimization.optimizers[0]
        self.loss_value = self.store.value("loss")  # on every rank, also one that never has a sample
        self.world_size, self.data_ranks = context.ranks.world_size, context.ranks.data_world_size
        self.source = source_of(module.training_step)
        self.takes_index = positional_arguments(module.training_step) > 1
        self.computes_gradients = False
        log_line = context.directory.log_line
        scales = strategy.precision.scales
        self.overflows = Overflows(strategy.precision, self.state, log_line) if scales else None
        self.without_loss = StepsWithoutLoss(module, strategy, self.guard, self.state, log_line)
        self.training_step = with_faultpoint(
            "step.forward", strategy.step_function(module, "training_step")
        )
        backward = module.backward if is_overridden(module, "backward") else strategy.backward
        self.backward = with_faultpoint("step.backward", backward)
        self.apply_update = with_faultpoint("step.update", strategy.step)
        self.custom_step = module.optimizer_step if is_overridden(module, "optimizer_step") else None
        self.schedules = context.optimization.of_interval("step") if module.automatic_optimization else []
        self.loss_weights = LossWeights(context)
        reads = strategy.device.type == "cpu" or (self.guard is not None and self.guard.reads_losses)
        self.record_loss = self.record_on_host if reads else self.record_on_device
        self.before_step = context.hooks["on_step_start"]
        if context.ranks.tensor_parallel_size > 1:
            self.before_step = (SameSamples(context.ranks), *self.before_step)
        self.trained = context.trained
        if self.trained is not None:  # after the hooks, which may change it
            self.before_step = (*self.before_step, self.trained.follow)
        self.on_before_optimizer_step = context.hooks["on_before_optimizer_step"]
        self.clip_norm, self.clip_value = settings.clip_grad_norm, settings.clip_grad_value
        self.clips = self.clip_norm is not None or self.clip_value is not None
        self.touches_gradients = self.clips or bool(self.on_before_optimizer_step)

    def automatic(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """One optimizer step: its micro-batches, then one update. What ``training_step`` returned.

        Args:
            batches: This rank's micro-batches, on the device.
            sizes: The samples in each of this rank's micro-batches.
            total: The samples of all ranks; None where they are known to nobody yet.
        """
        step, last = self.step, len(batches) - 1
        step.begin(batches, sizes, total)
        self.computes_gradients = True
        for call in self.before_step:
            call(self.trainer, batches)
        if last:
            self.strategy.begin_accumulation()
        for index, batch in enumerate(batches):
            if self.custom_step is not None and index == last:
                self.run_custom_step(self.custom_step)
                return step.outputs
            self.store.weight = sizes[index]
            if last:
                self.strategy.synchronise_gradients(index == last)
            if not sizes[index]:
                output = self.padding_step(batch)
            elif self.takes_index:
                output = self.training_step(batch, self.state.batch_idx)
            else:
                output = self.training_step(batch)
            self.go_backward(index, output)
        if self.finish_gradients() and self.update() and self.schedules:
            self.step_schedules()
        return step.outputs

    def go_backward(self, index: int, output: Any) -> Tensor | None:
        """The backward of one micro-batch; its loss, None where it has none."""
        step, size = self.step, self.step.sizes[index]
        weight: Any = None if step.total else size
        if size:
            step.outputs.append(output)
        self.state.batch_idx += 1
        loss: Tensor | None
        if type(output) is Tensor and output.requires_grad and output.numel() == 1:
            loss = self.record_loss(output, weight, size, index)
        else:
            loss, weight = self.loss_of(output, weight, size, index)
        if loss is None or (self.without_loss.here and self.world_size == 1):
            return None
        if len(step.batches) > 1 or self.world_size > 1:
            loss = self.loss_weights.weigh(loss, weight, index)
        if self.trained is not None:
            self.trained.check_within_step(lambda: f"{self.state.step_label}{self.source}")
        self.backward(loss)
        return loss

    def finish_gradients(self) -> bool:
        """Leave the step's true gradients, shown to hooks and clipped. False: there is no update."""
        step, optimizer, strategy = self.step, self.optimizer, self.strategy
        self.computes_gradients = False
        if len(step.batches) > 1:
            strategy.finish_accumulation()
        if self.without_loss.here and self.world_size == 1:
            self.without_loss.end_step(optimizer)
            return False
        weighted = step.sum_of_weights is not None
        if weighted or self.touches_gradients:
            strategy.unscale(optimizer)
        if weighted:
            self.loss_weights.divide_out(optimizer)
        if self.guard is not None and self.guard.finds(optimizer):
            self.hold_back(self.guard)
            return False
        if self.on_before_optimizer_step and not self.show_gradients():
            strategy.skip(optimizer)
            return False
        if self.clips:
            step.gradient_norm = strategy.clip(optimizer, self.clip_norm, self.clip_value)
        return True

    def update(self) -> bool:
        """Change the weights; False where the precision or strategy did not."""
        optimizer, guard = self.optimizer, self.guard
        if self.schedules:
            self.context.optimization.note_used(optimizer)
        applied: bool = self.apply_update(optimizer)
        if not applied and guard is not None and guard.skipped_by_strategy():
            self.hold_back(guard)
        elif self.overflows is not None:
            unknown: list[list[Any]] = [[] for _ in self.step.batches]
            self.overflows.look(partial(self.find_origin, unknown))
        return applied

    def step_schedules(self) -> None:
        """The weights have changed: next come the learning rates that go by steps."""
        for schedule in self.schedules:
            schedule.step(self.state.global_step + 1, self.context.logger.require)

    # -- losses --------------------------------------------------------------------------------

    def loss_of(self, output: Any, weight: Any, size: int, index: int) -> tuple[Tensor | None, Any]:
        """The loss in what ``training_step`` returned, logged, and its weight; None skips the step."""
        if output is None and self.without_loss.possible:
            return self.without_loss.stand_in(), weight if self.state.weight_reference is None else 0.0
        place = f"{self.state.step_label}{self.source}"
        loss, weight = read_training_output(output, weight, self.store, place)
        return self.record_loss(loss, weight, size, index), weight

    def record_on_host(self, loss: Tensor, weight: Any, size: int, index: int) -> Tensor:
        """Log a micro-batch's loss; what is not finite makes all gradients so, for the guard to find."""
        value = loss.item()
        if size:
            self.step.losses.append((value, size if weight is None else weight))
            if not math.isfinite(value) and self.guard is not None:
                return self.guard.poison(loss, index, value)
        self.loss_value.add(value, size if weight is None else float(weight))
        return loss

    def record_on_device(self, loss: Tensor, weight: Any, size: int, index: int) -> Tensor:
        """The same of a loss on an accelerator, which is not waited for."""
        if loss.is_cpu:
            return self.record_on_host(loss, weight, size, index)
        if size:
            self.step.losses.append((loss.detach(), size if weight is None else weight))
        self.store.log("loss", loss, weight=weight)
        return loss if self.guard is None else self.guard.poison_unread(loss)

    # -- gradients -----------------------------------------------------------------------------

    def show_gradients(self) -> bool:
        """Show the gradients to hooks. False where one of them wants no update."""
        self.step.skips_update = False
        for hook in self.on_before_optimizer_step:
            hook(self.trainer, self.optimizer)
        return not self.step.skips_update

    def hold_back(self, guard: Guard) -> None:
        """A loss or gradient is not finite: an error, or a step without an update."""
        if guard.hold_back(self.optimizer, len(self.step.batches), self.find_origin):
            self.without_loss.end_step(self.optimizer)

    def finish(self) -> None:
        """The run is over: what is pending is looked at."""
        if self.guard is not None:
            self.guard.finish()

    # -- the module's own optimizer_step -------------------------------------------------------

    def run_custom_step(self, custom_step: Callable[..., Any]) -> None:
        """The last micro-batch and the update, as the module's ``optimizer_step`` has them."""
        step, last = self.step, len(self.step.batches) - 1

        def last_micro_batch() -> Any:
            batch, size = step.batches[last], step.sizes[last]
            self.store.weight = size
            if last:
                self.strategy.synchronise_gradients(True)
            output = self.training_step(*self.arguments(batch)) if size else self.padding_step(batch)
            return self.go_backward(last, output)

        optimizer = AutomaticOptimizer(
            self.optimizer,
            gradients=last_micro_batch,
            finish=self.finish_gradients,
            update=self.update,
            skip=lambda: self.strategy.skip(self.optimizer),
            before_own_method=self.before_own_method,
        )
        custom_step(optimizer, optimizer.closure)
        optimizer.check(self.state.step_label)
        if optimizer.updated:
            self.step_schedules()

    def before_own_method(self, name: str) -> None:
        """A method of the optimizer's class is about to update, in the place of ``step``."""
        scaled = self.strategy.precision.scales
        refuse_own_method(name, self.optimizer, self.strategy, self.context.module, scaled)
        if self.schedules:
            self.context.optimization.note_used(self.optimizer)

    # -- the same step again -------------------------------------------------------------------

    def find_origin(self, samples: list[list[Any]]) -> Origin:
        """Run the current step once more, and find where a number is not finite first."""
        batches = self.step.batches

        def forward(index: int) -> Any:
            return self.training_step(*self.arguments(batches[index], index - len(batches)))

        return find_origin(
            FailedStep(
                module=self.context.module,
                strategy=self.strategy,
                batches=batches,
                sizes=self.step.sizes,
                samples=samples,
                forward=forward,
                nothing_kept=self.nothing_kept,
                uncompiled=partial(uncompiled, self.context.compilation),
            )
        )

    def padding_step(self, batch: Any) -> Any:
        """A rank without a sample runs the step's first one with weight 0; nothing of it is kept."""
        with self.nothing_kept():
            output = self.training_step(*self.arguments(batch))
            if output is None or not self.context.module.automatic_optimization:
                return output
            store = self.context.logger.current
            loss, weight = read_training_output(output, None, store, self.state.step_label)
        return loss if weight is None else {"loss": loss, "weight": 0.0}

    def nothing_kept(self) -> AbstractContextManager[None]:
        """Inside, nothing that a step logs or counts is kept."""
        return nothing_kept(self.context.module, self.context.logger, self.store)

    def arguments(self, batch: Any, after: int = 0) -> tuple[Any, ...]:
        """What training_step takes for a micro-batch, so many after the next one."""
        return (batch, self.state.batch_idx + after)[: 2 if self.takes_index else 1]

    # -- manual optimization -------------------------------------------------------------------

    def manual(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """A step whose backward and updates are the user's own."""
        manual, batch, size = self.context.manual, batches[0], sizes[0]
        self.step.begin(batches, sizes, total)
        for call in self.before_step:
            call(self.trainer, batches)
        self.store.weight = size
        # Ranks average their gradients; a batch counts by its samples.
        manual.begin_step(1.0 if total is None else size * self.data_ranks / total)
        if not size:
            output = self.padding_step(batch)
        elif self.takes_index:
            output = self.training_step(batch, self.state.batch_idx)
        else:
            output = self.training_step(batch)
        self.state.batch_idx += 1
        self.step.losses = [(loss, size) for loss in manual.losses]
        if size:
            log_evaluation_output(output, self.store)
        self.strategy.precision.update()
        if self.overflows is not None:
            self.overflows.look()
        return [output] if size else []
