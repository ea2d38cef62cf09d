"""The training loop, as the algorithm reads. docs/loop.md shows it with every hook in its place."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...durations import Cadence, Duration
from ...errors import PacelineError
from ...faultpoints import faultpoint
from ..data.feed import Feed
from ..faults.nan_trace import FailedStep, Origin, find_origin
from ..faults.nonfinite import Guard
from ..runtime.compilation import uncompiled
from ..runtime.discard_effects import nothing_kept
from ..utils.functions import positional_arguments, source_of
from .fit_context import FitContext
from .step_output import log_evaluation_output, read_training_output, some_weights

_LOG_EVERY = "50st"


class TrainLoop:
    """Everything a step needs is looked up here, once."""

    def __init__(self, context: FitContext) -> None:
        module, settings = context.module, context.settings
        self.context, self.trainer, self.settings = context, context.trainer, settings
        self.state, self.strategy, self.stop = context.state, context.strategy, context.stop
        self.feed, self.optimization = context.feed, context.optimization
        self.manual = None if module.automatic_optimization else context.manual
        self.logger, self.store = context.logger, context.logger.train
        self.training_step = self.strategy.step_function(module, "training_step")
        self.source = source_of(module.training_step)
        self.takes_index = positional_arguments(module.training_step) > 1
        self.loss_value = self.store.value("loss")
        self.seconds = context.stop.seconds
        self.world_size = context.ranks.world_size
        self.agrees = self.world_size > 1
        self.optimizer = self.optimization.optimizers[0]
        self.guard = context.guard
        self.reads_losses = self.guard is not None and self.guard.reads_losses
        self.step_schedules = self.optimization.of_interval("step") if self.manual is None else []
        self.hooks = hooks = context.hooks
        self.on_step_start = hooks["on_step_start"]
        self.on_before_optimizer_step = hooks["on_before_optimizer_step"]
        self.on_step_end = hooks["on_step_end"]
        self.on_step_boundary = hooks["on_step_boundary"]
        self.touches_gradients = bool(
            settings.clip_grad_norm is not None
            or settings.clip_grad_value is not None
            or self.on_before_optimizer_step
        )
        length = context.limits.steps_per_epoch
        log_every = Duration.parse(settings.log_every or _LOG_EVERY, where="log_every")
        self.log_cadence = Cadence(log_every, length)
        self.validate_cadence = None
        if context.validation is not None and settings.validate_every is not None:
            rhythm = "1ep" if settings.fast_dev_run else settings.validate_every
            every = Duration.parse(rhythm, where="validate_every")
            self.validate_cadence = Cadence(every, length)
        for cadence in (self.log_cadence, self.validate_cadence):
            if cadence is not None:
                cadence.restart(self.seconds())
        self.logged_step = self.state.global_step or -1
        self.logged_at = (time.perf_counter(), self.state.samples)
        self.next_event = self.find_next_event()

    def run(self) -> None:
        """Train until there is a reason to stop."""
        stop, store = self.stop, self.store
        stop.agree()
        while not stop.done:
            self.epoch()
        if self.guard is not None:
            self.guard.finish()
        stop.agree()  # a signal may have come after the last agreement
        if self.manual is not None and not self.manual.has_stepped:
            self.context.directory.log_line(
                "no weight was updated: with manual optimization training_step must call optimizer.step()"
            )
        # A window cut by the end is logged too. One cut by a stop continues when the run is resumed.
        rest = store.peek_window()
        self.logger.latest.update(rest)
        if not stop.asked:
            self.logger.publish(rest)

    def epoch(self) -> None:
        """One epoch, or what is left of it."""
        trainer, state, feed, stop = self.trainer, self.state, self.feed, self.stop
        stop.epoch_over = False
        run_step = self.step if self.manual is None else self.manual_step
        for hook in self.hooks["on_train_epoch_start"]:
            hook(trainer)
        if state.validating:
            self.finish_validation()
            if stop.done or state.position == 0:
                return
        steps = feed.steps(state.epoch, state.position)
        for batches, sizes, total, advance in self.context.signals.interruptible(steps):
            outputs = run_step(batches, sizes, total)
            faultpoint("step.end")
            state.global_step += 1
            state.position += advance
            state.samples += advance
            for hook in self.on_step_end:
                hook(trainer, outputs)
            ended = feed.ended or stop.epoch_over
            eventful = ended or state.global_step >= self.next_event
            if eventful:
                self.events(ended)
                if state.validating:
                    return
            if self.agrees:
                stop.at_boundary()
            for hook in self.on_step_boundary:
                hook(trainer)
            if ended or stop.asked or (eventful and stop.done):
                return
        if stop.interrupted:
            return
        if state.position == 0:
            raise _no_batch(feed, state.epoch)
        self.events(epoch_ended=True)
        if state.validating:
            return
        for hook in self.on_step_boundary:
            hook(trainer)

    def step(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """One optimizer step: its micro-batches, then one update. What ``training_step`` returned.

        Args:
            batches: This rank's micro-batches, on the device.
            sizes: The samples in each of this rank's micro-batches.
            total: The samples of all ranks; None where they are known to nobody yet.
        """
        trainer, state, store, strategy = self.trainer, self.state, self.store, self.strategy
        guard = self.guard
        for hook in self.on_step_start:
            hook(trainer, batches)
        outputs: list[Any] = []
        weights: list[Any] = []
        sum_of_weights: Callable[[], Tensor] | None = None
        many = len(batches) > 1
        for index, batch in enumerate(batches):
            store.weight = size = sizes[index]
            if many:
                strategy.synchronise_gradients(index == len(batches) - 1)
            faultpoint("step.forward")
            if not size:
                output = self.padding_step(batch)
            elif self.takes_index:
                output = self.training_step(batch, state.batch_idx)
            else:
                output = self.training_step(batch)
            if size:
                outputs.append(output)
            state.batch_idx += 1
            loss, weight = output, None if total else size
            if type(loss) is not Tensor or not loss.requires_grad or loss.numel() != 1:
                loss, weight = read_training_output(
                    output, weight, store, f"{state.step_label}{self.source}"
                )
            loss = self.record_loss(loss, weight, size, index)
            if many or self.world_size > 1:
                loss = self.weigh(loss, weight, weights, index, size * self.world_size / (total or 1))
            if weights and index == len(batches) - 1:  # on its way while backward runs
                sum_of_weights = strategy.all_reduce_async(self.as_word(sum(weights)))
            faultpoint("step.backward")
            strategy.backward(loss)
        if self.touches_gradients or weights:
            self.finish_gradients(sum_of_weights)
        if guard is not None and guard.finds(self.optimizer):
            self.hold_back(guard, batches, sizes)
            return outputs
        if self.touches_gradients:
            self.show_and_clip()
        faultpoint("step.update")
        if strategy.step(self.optimizer):
            for schedule in self.step_schedules:
                schedule.step(state.global_step + 1, self.logger.require)
        elif guard is not None and guard.skipped_by_strategy():
            self.hold_back(guard, batches, sizes)
        return outputs

    def record_loss(self, loss: Tensor, weight: Any, size: int, index: int) -> Tensor:
        """Log a micro-batch's loss; what is not finite makes all gradients so, for the guard to find."""
        guard = self.guard
        if not (loss.is_cpu or self.reads_losses):
            self.store.log("loss", loss, weight=weight)
            return loss if guard is None else guard.poison_unread(loss)
        value = loss.item()
        if guard is not None and size and not math.isfinite(value):
            return guard.poison(loss, index, value)
        self.loss_value.add(value, size if weight is None else float(weight))
        return loss

    def hold_back(self, guard: Guard, batches: list[Any], sizes: list[int]) -> None:
        """A loss or gradient is not finite: an error, or a step without an update."""

        def forward(index: int) -> Any:
            return self.training_step(*self.arguments(batches[index], index - len(batches)))

        def find(samples: list[list[Any]]) -> Origin:
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

        guard.hold_back(self.optimizer, len(batches), find)

    def padding_step(self, batch: Any) -> Any:
        """A rank without a sample runs the step's first one with weight 0; nothing of it is kept."""
        with self.nothing_kept():
            output = self.training_step(*self.arguments(batch))
            if self.manual is not None:
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

    def manual_step(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """A step whose backward and updates are the user's own."""
        trainer, state = self.trainer, self.state
        assert self.manual is not None
        for hook in self.on_step_start:
            hook(trainer, batches)
        self.store.weight = sizes[0]
        # Ranks average their gradients; a batch counts by its samples.
        self.manual.begin_step(1.0 if total is None else sizes[0] * self.world_size / total)
        if not sizes[0]:
            output = self.padding_step(batches[0])
        elif self.takes_index:
            output = self.training_step(batches[0], state.batch_idx)
        else:
            output = self.training_step(batches[0])
        state.batch_idx += 1
        if sizes[0]:
            log_evaluation_output(output, self.store)
        self.strategy.precision.update()
        return [output] if sizes[0] else []

    def weigh(self, loss: Tensor, weight: Any, weights: list[Any], index: int, factor: float) -> Tensor:
        """A micro-batch's part of the step's loss, sum(weight * loss) / sum(weight) over all ranks.

        A weight known only now is kept in ``weights``; the sum is divided out when all are known.
        ``factor`` is the part by samples, times the ranks: gradients are averaged over them.
        """
        if len(weights) != (0 if weight is None else index):
            raise some_weights(self.state.step_label)
        if weight is None:
            return loss if factor == 1.0 else loss * factor
        if self.state.weight_reference is None:
            # A power of two near the weights: scaled losses keep the range of the loss, exactly.
            near = 2.0 ** round(math.log2(float(weight))) if weight > 0 else 1.0
            self.state.weight_reference = self.strategy.broadcast(near)
        weights.append(weight)
        weighed: Tensor = loss * (weight / self.state.weight_reference)
        return weighed

    def finish_gradients(self, sum_of_weights: Callable[[], Tensor] | None) -> None:
        """Leave the step's true gradients: unscaled, the sum of weights divided out."""
        optimizer, strategy = self.optimizer, self.strategy
        strategy.unscale(optimizer)
        if sum_of_weights is not None:
            # A step without any weight has no gradient, not a NaN.
            total = sum_of_weights().clamp(min=1e-30).squeeze(0)
            strategy.multiply_gradients(
                optimizer, (self.state.weight_reference or 1.0) * self.world_size / total
            )

    def show_and_clip(self) -> None:
        """Show the gradients to hooks, then clip them."""
        optimizer, settings = self.optimizer, self.settings
        for hook in self.on_before_optimizer_step:
            hook(self.trainer, optimizer)
        if settings.clip_grad_norm is not None or settings.clip_grad_value is not None:
            self.strategy.clip(optimizer, settings.clip_grad_norm, settings.clip_grad_value)

    def as_word(self, value: Any) -> Tensor:
        """One number as a tensor on the device."""
        wide = torch.float32 if self.strategy.device.type == "mps" else torch.float64
        return torch.as_tensor(value, dtype=wide, device=self.strategy.device).reshape(1)

    def events(self, epoch_ended: bool) -> None:
        """What does not happen in every step: a log point, a validation, the end of the epoch."""
        state, at = self.state, self.state.after_step(epoch_ended)
        if self.logged_step != state.global_step and (
            state.global_step == 1 or self.log_cadence.due(at, self.seconds)
        ):
            self.write_log()
        cadence = self.validate_cadence if state.validated_step != state.global_step else None
        validates = cadence is not None and (state.validating or cadence.due(at, self.seconds))
        if validates and not self.validate(epoch_ended):
            return
        if epoch_ended:
            self.end_epoch()
        if validates and self.manual is None:
            self.optimization.step_after_validation(self.logger.require)
        if validates or epoch_ended:
            self.stop.agree()
        if cadence is not None and validates:
            cadence.restart(self.seconds())  # the validation's own time does not count
        self.next_event = self.find_next_event()

    def validate(self, epoch_ended: bool) -> bool:
        """A validation, its values published; False where a signal cut it short."""
        state, validation = self.state, self.context.validation
        assert validation is not None
        state.validating = "epoch" if epoch_ended else "step"
        whole = validation.run(self.logger.publish)
        self.context.report_compilation()
        if whole:
            state.validating = ""
            state.validated_step = state.global_step
        return whole

    def finish_validation(self) -> None:
        """Repeat the validation that a signal cut short before this run was resumed, and what follows."""
        self.events(epoch_ended=self.state.validating == "epoch")
        if not self.state.validating:
            self.context.checkpoints.allow_again(self.state.global_step)
            for hook in self.on_step_boundary:
                hook(self.trainer)

    def find_next_event(self) -> float:
        """The earliest step after which anything but the next step may have to happen."""
        state, limits = self.state, self.context.limits
        if state.global_step == 0 or limits.max_seconds is not None:
            return state.global_step + 1
        cadences = [c for c in (self.log_cadence, self.validate_cadence) if c is not None]
        steps = [c.next_step(state.global_step, state.epoch) for c in cadences]
        return min([*steps, math.inf if limits.max_steps is None else limits.max_steps])

    def end_epoch(self) -> None:
        """Epoch means, hooks, then the schedules that go by epochs."""
        faultpoint("epoch.end")
        state, logger = self.state, self.logger
        window = self.store.close_window()
        means = {f"{name}_epoch": value for name, value in self.store.close_epoch().items()}
        logger.publish(window | means | self.optimization.learning_rates())
        self.context.report_compilation()
        logger.publish_each(self.hooks["on_train_epoch_end"], self.trainer)
        if self.manual is None:
            for schedule in self.optimization.of_interval("epoch"):
                schedule.step(state.epoch + 1, self.logger.require)
        state.epoch += 1
        state.begin_epoch()

    def write_log(self) -> None:
        """Reduce the window and hand it to the loggers, with learning rates and speed."""
        now, samples = time.perf_counter(), self.state.samples
        before, samples_before = self.logged_at
        self.logged_at, self.logged_step = (now, samples), self.state.global_step
        speed = {"perf/samples_per_second": (samples - samples_before) / max(now - before, 1e-9)}
        values = self.store.close_window()
        self.logger.publish(values | self.optimization.learning_rates() | speed)
        self.context.report_compilation()


def _no_batch(feed: Feed, epoch: int) -> PacelineError:
    again = "a generator is exhausted after one epoch: pass a DataLoader or a list"
    empty = "see that the dataset is not empty, and drop_last does not drop all of it"
    return PacelineError(
        "the training data has no batch" + (" a second time" if epoch else ""),
        got=str(feed.fingerprint()),
        fix=again if epoch else empty,
    )
