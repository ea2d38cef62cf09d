"""One optimizer step: its micro-batches, what their losses weigh, then one update."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...common.faultpoints import faultpoint
from ..faults.nan_trace import FailedStep, Origin, find_origin
from ..faults.nonfinite import Guard
from ..faults.overflow import Overflows
from ..module import is_overridden
from ..runtime.compilation import uncompiled
from ..runtime.discard_effects import nothing_kept
from ..utils.functions import positional_arguments, source_of
from .automatic_optimizer import AutomaticOptimizer
from .fit_context import FitContext
from .manual_optimizer import refuse_own_method
from .same_samples import SameSamples
from .step_output import (
    log_evaluation_output,
    other_ranks_weights,
    read_training_output,
    some_weights,
    weights_of_some_ranks,
)
from .steps_without_loss import StepsWithoutLoss


@dataclass(slots=True)
class _StepUnderWay:
    """This rank's micro-batches of a step, and what is known of them so far.

    Args:
        batches: On the device.
        sizes: The samples in each of them.
        total: The samples of all ranks; None where they are known to nobody yet.
    """

    batches: list[Any]
    sizes: list[int]
    total: int | None
    outputs: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    sum_of_weights: Callable[[], Tensor] | None = None


class OptimizerStep:
    """Everything a step needs is looked up here, once.

    Attributes:
        computes_gradients: Whether the step under way still computes gradients, and has used none of them.
    """

    def __init__(self, context: FitContext) -> None:
        module, settings, optimization = context.module, context.settings, context.optimization
        automatic = module.automatic_optimization
        self.context, self.trainer, self.settings = context, context.trainer, settings
        self.state, self.strategy = context.state, context.strategy
        self.logger, self.store = context.logger, context.logger.train
        self.training_step = self.strategy.step_function(module, "training_step")
        self.backward = module.backward if is_overridden(module, "backward") else self.strategy.backward
        self.computes_gradients = False
        self.own_update = module.optimizer_step if is_overridden(module, "optimizer_step") else None
        self.source = source_of(module.training_step)
        self.takes_index = positional_arguments(module.training_step) > 1
        self.loss_value = self.store.value("loss")
        self.has_weights: bool | None = None
        self.ranks = context.ranks
        self.world_size, self.data_ranks = context.ranks.world_size, context.ranks.data_world_size
        self.optimizer = optimization.optimizers[0]
        self.guard = context.guard
        self.reads_losses = self.guard is not None and self.guard.reads_losses
        self.place = context.place
        precision, log_line = self.strategy.precision, context.directory.log_line
        self.overflows = Overflows(precision, self.state, log_line) if precision.scales else None
        self.without_loss = StepsWithoutLoss(module, self.strategy, self.guard, self.state, log_line)
        self.schedules = optimization.of_interval("step") if automatic else []
        self.note_used = optimization.note_used
        self.on_step_start = context.hooks["on_step_start"]
        if context.ranks.tensor_parallel_size > 1:
            self.on_step_start = (SameSamples(context.ranks), *self.on_step_start)
        self.trained = context.trained
        if self.trained is not None:  # after the hooks, which may change it
            self.on_step_start = (*self.on_step_start, self.trained.follow)
        self.on_before_optimizer_step = context.hooks["on_before_optimizer_step"]
        self.touches_gradients = bool(
            settings.clip_grad_norm is not None
            or settings.clip_grad_value is not None
            or self.on_before_optimizer_step
        )

    def automatic(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """One optimizer step: its micro-batches, then one update. What ``training_step`` returned.

        Args:
            batches: This rank's micro-batches, on the device.
            sizes: The samples in each of this rank's micro-batches.
            total: The samples of all ranks; None where they are known to nobody yet.
        """
        trainer = self.trainer
        self.place.losses.clear()
        self.place.gradient_norm = None
        self.computes_gradients = True
        for hook in self.on_step_start:
            hook(trainer, batches)
        step = _StepUnderWay(batches, sizes, total)
        last = len(batches) - 1
        own_update = self.own_update
        if last:
            self.strategy.begin_accumulation()
        for index, batch in enumerate(batches):
            if own_update is not None and index == last:
                self.update_in_its_own_way(step)
                return step.outputs
            self.begin_micro_batch(step, index)
            if not sizes[index]:
                output = self.padding_step(batch)
            elif self.takes_index:
                output = self.training_step(batch, self.state.batch_idx)
            else:
                output = self.training_step(batch)
            self.go_backward(step, index, output)
        if self.finish_gradients(step) and self.update(step):
            self.step_schedules()
        return step.outputs

    def update_in_its_own_way(self, step: _StepUnderWay) -> None:
        """The last micro-batch and the update, as the module's ``optimizer_step`` has them."""
        last = len(step.batches) - 1

        def last_micro_batch() -> Any:
            self.begin_micro_batch(step, last)
            batch = step.batches[last]
            size = step.sizes[last]
            output = self.training_step(*self.arguments(batch)) if size else self.padding_step(batch)
            return self.go_backward(step, last, output)

        optimizer = AutomaticOptimizer(
            self.optimizer,
            gradients=last_micro_batch,
            finish=lambda: self.finish_gradients(step),
            update=lambda: self.update(step),
            skip=lambda: self.strategy.skip(self.optimizer),
            before_own_method=self.before_own_method,
        )
        assert self.own_update is not None
        self.own_update(optimizer, optimizer.closure)
        optimizer.check(self.state.step_label)
        if optimizer.updated:
            self.step_schedules()

    def before_own_method(self, name: str) -> None:
        """A method of the optimizer's class is about to update, in the place of ``step``."""
        scaled = self.strategy.precision.scales
        refuse_own_method(name, self.optimizer, self.strategy, self.context.module, scaled)
        if self.schedules:
            self.note_used(self.optimizer)

    def begin_micro_batch(self, step: _StepUnderWay, index: int) -> None:
        """A forward comes next."""
        self.store.weight = step.sizes[index]
        if len(step.batches) > 1:
            self.strategy.synchronise_gradients(index == len(step.batches) - 1)
        faultpoint("step.forward")

    def go_backward(self, step: _StepUnderWay, index: int, output: Any) -> Any:
        """The backward of one micro-batch; its loss, None where it has none."""
        size, total = step.sizes[index], step.total
        many, is_last = len(step.batches) > 1, index == len(step.batches) - 1
        if size:
            step.outputs.append(output)
        self.state.batch_idx += 1
        loss, weight = self.read_loss(output, None if total else size, size, index)
        if loss is None or (self.without_loss.here and self.world_size == 1):
            return None
        if many or self.world_size > 1:
            loss = self.weigh(loss, weight, step.weights, index, size * self.data_ranks / (total or 1))
        if step.weights and is_last:  # on an accelerator it is on its way while backward runs
            step.sum_of_weights = self.ranks.all_reduce_async(self.as_word(sum(step.weights)))
        if self.trained is not None:
            self.trained.check_within_step(lambda: f"{self.state.step_label}{self.source}")
        faultpoint("step.backward")
        self.backward(loss)
        return loss

    def finish_gradients(self, step: _StepUnderWay) -> bool:
        """Leave the step's true gradients, shown to hooks and clipped. False: there is no update."""
        guard = self.guard
        self.computes_gradients = False
        if len(step.batches) > 1:
            self.strategy.finish_accumulation()
        if self.without_loss.here and self.world_size == 1:
            self.without_loss.end_step(self.optimizer)
            return False
        if self.touches_gradients or step.weights:
            self.unscale_gradients(step.sum_of_weights)
        if guard is not None and guard.finds(self.optimizer):
            self.hold_back(guard, step.batches, step.sizes)
            return False
        if self.touches_gradients and not self.show_and_clip():
            self.strategy.skip(self.optimizer)
            return False
        return True

    def update(self, step: _StepUnderWay) -> bool:
        """Change the weights; False where the precision or strategy did not."""
        faultpoint("step.update")
        if self.schedules:
            self.note_used(self.optimizer)
        applied = self.strategy.step(self.optimizer)
        overflows, guard = self.overflows, self.guard
        if not applied and guard is not None and guard.skipped_by_strategy():
            self.hold_back(guard, step.batches, step.sizes)
        elif overflows is not None:
            unknown: list[list[Any]] = [[] for _ in step.batches]
            overflows.look(partial(self.find_origin, step.batches, step.sizes, unknown))
        return applied

    def step_schedules(self) -> None:
        """The weights have changed: next come the learning rates that go by steps."""
        for schedule in self.schedules:
            schedule.step(self.state.global_step + 1, self.logger.require)

    def read_loss(self, output: Any, weight: Any, size: int, index: int) -> tuple[Tensor | None, Any]:
        """The loss to go backward from, logged, and its weight; None: the step is skipped."""
        if type(output) is Tensor and output.requires_grad and output.numel() == 1:
            return self.record_loss(output, weight, size, index), weight
        if output is None and self.without_loss.possible:
            return self.without_loss.stand_in(), weight if self.state.weight_reference is None else 0.0
        place = f"{self.state.step_label}{self.source}"
        loss, weight = read_training_output(output, weight, self.store, place)
        return self.record_loss(loss, weight, size, index), weight

    def record_loss(self, loss: Tensor, weight: Any, size: int, index: int) -> Tensor:
        """Log a micro-batch's loss; what is not finite makes all gradients so, for the guard to find."""
        guard = self.guard
        if not (loss.is_cpu or self.reads_losses):
            if size:
                self.place.losses.append((loss.detach(), size if weight is None else weight))
            self.store.log("loss", loss, weight=weight)
            return loss if guard is None else guard.poison_unread(loss)
        value = loss.item()
        if size:
            self.place.losses.append((value, size if weight is None else weight))
        if guard is not None and size and not math.isfinite(value):
            return guard.poison(loss, index, value)
        self.loss_value.add(value, size if weight is None else float(weight))
        return loss

    def finish(self) -> None:
        """The run is over: what is pending is looked at."""
        if self.guard is not None:
            self.guard.finish()

    def hold_back(self, guard: Guard, batches: list[Any], sizes: list[int]) -> None:
        """A loss or gradient is not finite: an error, or a step without an update."""
        if guard.hold_back(self.optimizer, len(batches), partial(self.find_origin, batches, sizes)):
            self.without_loss.end_step(self.optimizer)

    def find_origin(self, batches: list[Any], sizes: list[int], samples: list[list[Any]]) -> Origin:
        """Run the current step once more, and find where a number is not finite first."""

        def forward(index: int) -> Any:
            return self.training_step(*self.arguments(batches[index], index - len(batches)))

        return find_origin(
            FailedStep(
                module=self.context.module,
                strategy=self.strategy,
                batches=batches,
                sizes=sizes,
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
            store = self.logger.current
            loss, weight = read_training_output(output, None, store, self.state.step_label)
        return loss if weight is None else {"loss": loss, "weight": 0.0}

    def nothing_kept(self) -> AbstractContextManager[None]:
        """Inside, nothing that a step logs or counts is kept."""
        return nothing_kept(self.context.module, self.logger, self.store)

    def arguments(self, batch: Any, after: int = 0) -> tuple[Any, ...]:
        """What training_step takes for a micro-batch, so many after the next one."""
        return (batch, self.state.batch_idx + after)[: 2 if self.takes_index else 1]

    def manual(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """A step whose backward and updates are the user's own."""
        trainer, state = self.trainer, self.state
        for hook in self.on_step_start:
            hook(trainer, batches)
        self.store.weight = sizes[0]
        # Ranks average their gradients; a batch counts by its samples.
        self.context.manual.begin_step(1.0 if total is None else sizes[0] * self.data_ranks / total)
        if not sizes[0]:
            output = self.padding_step(batches[0])
        elif self.takes_index:
            output = self.training_step(batches[0], state.batch_idx)
        else:
            output = self.training_step(batches[0])
        state.batch_idx += 1
        self.place.losses = [(loss, sizes[0]) for loss in self.context.manual.losses]
        if sizes[0]:
            log_evaluation_output(output, self.store)
        self.strategy.precision.update()
        if self.overflows is not None:
            self.overflows.look()
        return [output] if sizes[0] else []

    def weigh(self, loss: Tensor, weight: Any, weights: list[Any], index: int, factor: float) -> Tensor:
        """A micro-batch's part of the step's loss, sum(weight * loss) / sum(weight) over all ranks.

        A weight known only now is kept in ``weights``; the sum is divided out when all are known.
        ``factor`` is the part by samples, times the data ranks: gradients are averaged over them.
        """
        if len(weights) != (0 if weight is None else index):
            raise some_weights(self.state.step_label)
        if self.has_weights is None:
            self.has_weights = self.agree_on_weights(weight)
        if self.world_size > 1 and self.has_weights is not (weight is not None):
            raise other_ranks_weights(f"{self.state.step_label}, rank {self.context.ranks.rank}", weight)
        if weight is None:
            return loss if factor == 1.0 else loss * factor
        weights.append(weight)
        weighed: Tensor = loss * (weight / self.state.weight_reference)
        return weighed

    def agree_on_weights(self, weight: Any) -> bool:
        """Whether ranks return weights, in the first step; and near which number all are scaled.

        Raises:
            PacelineError: on all ranks, where only some do.
        """
        # A power of two near the weights: scaled losses keep the range of the loss, exactly.
        near = None if weight is None else 2.0 ** round(math.log2(float(weight))) if weight > 0 else 1.0
        everyone = self.ranks.all_gather(near)
        without = [rank for rank, found in enumerate(everyone) if found is None]
        if 0 < len(without) < len(everyone):
            raise weights_of_some_ranks(self.state.step_label, without)
        if self.state.weight_reference is None:
            self.state.weight_reference = everyone[0]
        return weight is not None

    def unscale_gradients(self, sum_of_weights: Callable[[], Tensor] | None) -> None:
        """Leave the step's true gradients: unscaled, the sum of weights divided out."""
        optimizer, strategy = self.optimizer, self.strategy
        strategy.unscale(optimizer)
        if sum_of_weights is not None:
            # A step without any weight has no gradient, not a NaN. The sum is over all ranks: those of a
            # tensor group have the same weights, and are in world_size as often.
            total = sum_of_weights().clamp(min=1e-30).squeeze(0)
            strategy.multiply_gradients(
                optimizer, (self.state.weight_reference or 1.0) * self.world_size / total
            )

    def show_and_clip(self) -> bool:
        """Show the gradients to hooks, then clip them. False where a hook wants no update."""
        optimizer, settings = self.optimizer, self.settings
        self.place.skips_update = False
        for hook in self.on_before_optimizer_step:
            hook(self.trainer, optimizer)
        if self.place.skips_update:
            return False
        if settings.clip_grad_norm is not None or settings.clip_grad_value is not None:
            self.place.gradient_norm = self.strategy.clip(
                optimizer, settings.clip_grad_norm, settings.clip_grad_value
            )
        return True

    def as_word(self, value: Any) -> Tensor:
        """One number as a tensor on the device."""
        wide = torch.float32 if self.strategy.device.type == "mps" else torch.float64
        return torch.as_tensor(value, dtype=wide, device=self.strategy.device).reshape(1)
