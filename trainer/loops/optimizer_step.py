"""One optimizer step, put together at the start of a fit from the parts that this run has."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...common.faultpoints import with_faultpoint
from ..faults.nan_trace import FailedStep, Origin, find_origin
from ..faults.nonfinite import Guard
from ..faults.overflow import Overflows
from ..module import is_overridden
from ..runtime.compilation import uncompiled
from ..runtime.discard_effects import nothing_kept
from ..utils.functions import positional_arguments, source_of
from .automatic_optimizer import AutomaticOptimizer
from .feed_settings import SameSamples
from .fit_context import FitContext
from .loss_weights import LossWeights
from .manual_optimizer import refuse_own_method
from .step_output import log_evaluation_output, read_training_output
from .steps_without_loss import StepsWithoutLoss


class OptimizerStep:
    """What a step does, looked up once. What the run has not switched on is not among it.

    Attributes:
        before_step: Called with the trainer and the micro-batches: hooks, comparisons.
        gradient_parts: Called in order when all gradients are there, with the optimizer. One that returns
            True has ended the step without an update.
        computes_gradients: Whether the step under way still computes gradients, and has used none of them.
    """

    def __init__(self, context: FitContext) -> None:
        module, strategy = context.module, context.strategy
        self.context, self.trainer, self.strategy = context, context.trainer, strategy
        self.state, self.step, self.guard = context.state, context.step, context.guard
        self.store, self.optimizer = context.logger.train, context.optimization.optimizers[0]
        self.loss_value = self.store.value("loss")  # on every rank, also one that never has a sample
        self.world_size = context.ranks.world_size
        self.source = source_of(module.training_step)
        self.takes_index = positional_arguments(module.training_step) > 1
        self.computes_gradients = False
        log_line = context.directory.log_line
        scales = strategy.precision.scales
        self.overflows = Overflows(strategy.precision, self.state, log_line) if scales else None
        self.without_loss = StepsWithoutLoss(module, strategy, self.guard, self.state, log_line)
        self.training_step = strategy.step_function(module, "training_step")
        self.before_step = self.parts_before_step()
        self.schedules: list[Any] = []
        if module.automatic_optimization:
            self.put_together()

    def put_together(self) -> None:
        """The parts of a step whose backward and update are the run's."""
        context, module, strategy = self.context, self.context.module, self.strategy
        self.schedules = context.optimization.of_interval("step")
        self.training_step = with_faultpoint("step.forward", self.training_step)
        backward = module.backward if is_overridden(module, "backward") else strategy.backward
        self.backward = self.checked(with_faultpoint("step.backward", backward))
        self.apply_update = with_faultpoint("step.update", strategy.step)
        self.custom_step = module.optimizer_step if is_overridden(module, "optimizer_step") else None
        self.loss_weights = LossWeights(context)
        reads = strategy.device.type == "cpu" or (self.guard is not None and self.guard.reads_losses)
        self.record_loss = self.read_loss if reads else self.keep_loss
        self.gradient_parts = self.parts_after_backward()

    def parts_before_step(self) -> tuple[Callable[..., None], ...]:
        """What ranks compare, the hooks, and what the strategy is told of what hooks have changed."""
        context = self.context
        compared = [SameSamples(self.strategy)] if self.strategy.tensor_parallel_size > 1 else []
        followed = [context.trained.follow] if context.trained is not None else []
        return (*compared, *context.hooks["on_step_start"], *followed)

    def parts_after_backward(self) -> list[Callable[[Optimizer], Any]]:
        """Unscale, divide by the sum of weights, look for what is not finite, show to hooks, clip."""
        settings, weighted = self.context.settings, self.loss_weights.returned
        clips = settings.clip_grad_norm is not None or settings.clip_grad_value is not None
        hooked = bool(self.context.hooks["on_before_optimizer_step"])
        parts: list[tuple[Any, Callable[[Optimizer], Any]]] = [
            (clips or hooked or weighted, self.strategy.unscale),
            (weighted, self.loss_weights.divide_out),
            (self.guard is not None, self.hold_back_nonfinite),
            (hooked, self.show),
            (clips, self.clip),
        ]
        return [part for is_on, part in parts if is_on]

    def checked(self, backward: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """``backward``, where the strategy minds, after a look at what is trained."""
        trained = self.context.trained
        if trained is None:
            return backward

        def checked_backward(loss: Tensor) -> None:
            trained.check_within_step(lambda: f"{self.state.step_label}{self.source}")
            backward(loss)

        return checked_backward

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
            self.begin_micro_batch(index)
            if not sizes[index]:
                output = self.padding_step(batch)
            elif self.takes_index:
                output = self.training_step(batch, self.state.batch_idx)
            else:
                output = self.training_step(batch)
            self.go_backward(index, output)
        if self.finish_gradients() and self.update():
            self.step_schedules()
        return step.outputs

    def go_backward(self, index: int, output: Any) -> Tensor | None:
        """The backward of one micro-batch; its loss, None where it has none."""
        step, size = self.step, self.step.sizes[index]
        weight = None if step.total else size
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
            if self.loss_weights.first_seen:
                self.gradient_parts = self.parts_after_backward()
        self.backward(loss)
        return loss

    def finish_gradients(self) -> bool:
        """Leave the gradients of the update. False: the step has ended without one."""
        self.computes_gradients = False
        if len(self.step.batches) > 1:
            self.strategy.finish_accumulation()
        if self.without_loss.here and self.world_size == 1:
            self.without_loss.end_step(self.optimizer)
            return False
        for part in self.gradient_parts:  # noqa: SIM110  (a generator is one more call in each step)
            if part(self.optimizer):
                return False
        return True

    def update(self) -> bool:
        """Change the weights; False where the precision or strategy did not."""
        if self.schedules:
            self.context.optimization.note_used(self.optimizer)
        applied: bool = self.apply_update(self.optimizer)
        if not applied and self.guard is not None and self.guard.skipped_by_strategy():
            self.hold_back(self.guard)
        elif self.overflows is not None:
            unknown: list[list[Any]] = [[] for _ in self.step.batches]
            self.overflows.look(partial(self.find_origin, unknown))
        return applied

    def step_schedules(self) -> None:
        """The weights have changed: next come the learning rates that go by steps."""
        for schedule in self.schedules:
            schedule.step(self.state.global_step + 1, self.context.logger.require)

    def begin_micro_batch(self, index: int) -> None:
        """A forward comes next."""
        self.store.weight = self.step.sizes[index]
        if len(self.step.batches) > 1:
            self.strategy.synchronise_gradients(index == len(self.step.batches) - 1)

    # -- losses --------------------------------------------------------------------------------

    def loss_of(self, output: Any, weight: Any, size: int, index: int) -> tuple[Tensor | None, Any]:
        """The loss in what ``training_step`` returned, logged, and its weight; None skips the step."""
        if output is None and self.without_loss.possible:
            return self.without_loss.stand_in(), weight if self.state.weight_reference is None else 0.0
        where = f"{self.state.step_label}{self.source}"
        loss, weight = read_training_output(output, weight, self.store, where)
        return self.record_loss(loss, weight, size, index), weight

    def read_loss(self, loss: Tensor, weight: Any, size: int, index: int) -> Tensor:
        """Log a micro-batch's loss; one that is not finite makes all gradients so, for the guard."""
        value = loss.item()
        if size:
            self.step.losses.append((value, size if weight is None else weight))
            if not math.isfinite(value) and self.guard is not None:
                return self.guard.poison(loss, index, value)
        self.loss_value.add(value, size if weight is None else float(weight))
        return loss

    def keep_loss(self, loss: Tensor, weight: Any, size: int, index: int) -> Tensor:
        """The same of a loss on an accelerator, which is not waited for."""
        if loss.is_cpu:
            return self.read_loss(loss, weight, size, index)
        if size:
            self.step.losses.append((loss.detach(), size if weight is None else weight))
        self.store.log("loss", loss, weight=weight)
        return loss if self.guard is None else self.guard.poison_unread(loss)

    # -- gradients -----------------------------------------------------------------------------

    def hold_back_nonfinite(self, optimizer: Optimizer) -> bool:
        """Whether a loss or gradient of any rank is not finite: the step has ended, or with an error."""
        guard = self.guard
        if guard is None or not guard.finds(optimizer):
            return False
        self.hold_back(guard)
        return True

    def show(self, optimizer: Optimizer) -> bool:
        """Show the gradients to hooks. Whether one wants no update."""
        self.step.skips_update = False
        for hook in self.context.hooks["on_before_optimizer_step"]:
            hook(self.trainer, optimizer)
        if self.step.skips_update:
            self.strategy.skip(optimizer)
        return self.step.skips_update

    def clip(self, optimizer: Optimizer) -> None:
        """Clip them by the norm of all, then by value."""
        settings = self.context.settings
        self.step.gradient_norm = self.strategy.clip(
            optimizer, settings.clip_grad_norm, settings.clip_grad_value
        )

    def hold_back(self, guard: Guard) -> None:
        """A loss or gradient is not finite: an error, or a step without an update."""
        if guard.hold_back(self.optimizer, len(self.step.batches), self.find_origin):
            self.without_loss.end_step(self.optimizer)

    # -- the module's own optimizer_step ---------------------------------------------------------

    def run_custom_step(self, custom_step: Callable[..., Any]) -> None:
        """The last micro-batch and the update, as the module's ``optimizer_step`` has them."""
        step, last = self.step, len(self.step.batches) - 1

        def last_micro_batch() -> Any:
            self.begin_micro_batch(last)
            batch = step.batches[last]
            given = self.arguments(batch)
            output = self.training_step(*given) if step.sizes[last] else self.padding_step(batch)
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

    def finish(self) -> None:
        """The run is over: what is pending is looked at."""
        if self.guard is not None:
            self.guard.finish()

    def manual(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """A step whose backward and updates are the user's own."""
        state = self.state
        for call in self.before_step:
            call(self.trainer, batches)
        self.store.weight = sizes[0]
        # Ranks average their gradients; a batch counts by its samples.
        self.context.manual.begin_step(
            1.0 if total is None else sizes[0] * self.context.ranks.data_world_size / total
        )
        if not sizes[0]:
            output = self.padding_step(batches[0])
        elif self.takes_index:
            output = self.training_step(batches[0], state.batch_idx)
        else:
            output = self.training_step(batches[0])
        state.batch_idx += 1
        self.step.losses = [(loss, sizes[0]) for loss in self.context.manual.losses]
        if sizes[0]:
            log_evaluation_output(output, self.store)
        self.strategy.precision.update()
        if self.overflows is not None:
            self.overflows.look()
        return [output] if sizes[0] else []
