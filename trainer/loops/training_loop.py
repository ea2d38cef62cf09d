"""The training loop, as the algorithm reads. docs/loop.md shows it with every hook in its place."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...durations import Cadence, Duration
from ...errors import PacelineError
from ...faultpoints import faultpoint
from ..data.feed import Feed
from ..faults.nan_trace import find_origin
from ..faults.nonfinite import Guard
from ..runtime.discard_effects import nothing_kept
from .optimizers import Optimization, Schedule
from .step_output import log_evaluation_output, read_training_output

if TYPE_CHECKING:
    from ..trainer import Trainer
    from .evaluation_loop import EvaluationLoop

_LOG_EVERY = "50st"


class TrainLoop:
    """Everything a step needs is looked up here, once."""

    def __init__(
        self,
        trainer: Trainer,
        feed: Feed,
        optimization: Optimization,
        validation: EvaluationLoop | None,
    ) -> None:
        module, settings = trainer.module, trainer.settings
        self.trainer, self.state, self.strategy = trainer, trainer.state, trainer.strategy
        self.feed, self.optimization = feed, optimization
        self.store, self.writer = trainer.train_store, trainer.writer
        self.manual = not module.automatic_optimization
        self.training_step = self.strategy.step_function(module, "training_step")
        self.source = source_of(module.training_step)
        self.takes_index = positional_arguments(module.training_step) > 1
        self.loss_value = self.store.value("loss")
        self.clock = trainer.agreed_clock
        self.world = trainer.world
        self.agreement = trainer.agreement
        self.optimizer = optimization.optimizers[0]
        self.guard = trainer.guard = None if settings.nonfinite == "ignore" else Guard(trainer)
        self.reads_losses = self.guard is not None and self.guard.reads_losses
        self.step_schedules = optimization.of_interval("step") if not self.manual else []
        self.hooks = trainer.hooks
        self.on_step_start = trainer.hooks["on_step_start"]
        self.on_before_optimizer_step = trainer.hooks["on_before_optimizer_step"]
        self.on_step_end = trainer.hooks["on_step_end"]
        self.on_step_boundary = trainer.hooks["on_step_boundary"]
        self.touches_gradients = bool(
            settings.clip_grad_norm is not None
            or settings.clip_grad_value is not None
            or self.on_before_optimizer_step
        )
        length = feed.steps_per_epoch
        log_every = Duration.parse(settings.log_every or _LOG_EVERY, where="log_every")
        self.log_cadence = Cadence(log_every, length)
        self.validate_cadence = None
        if validation is not None and settings.validate_every is not None:
            every = Duration.parse(settings.validate_every, where="validate_every")
            self.validate_cadence = Cadence(every, length)
        for cadence in (self.log_cadence, self.validate_cadence):
            if cadence is not None:
                cadence.last_seconds = self.clock()
        self.logged_step = self.state.global_step or -1
        self.logged_at = (time.perf_counter(), self.state.samples)
        self.next_event = self.find_next_event()

    def run(self) -> None:
        """Train until the trainer is done."""
        trainer = self.trainer
        trainer.agree()
        while not trainer.done:
            self.epoch()
        if self.guard is not None:
            self.guard.finish()
        trainer.agree()  # a signal may have come behind the last word
        if self.manual and not any(o.has_stepped for o in trainer.manual_optimizers):
            trainer.say(
                "no weight has changed: under manual optimization training_step calls optimizer.step()"
            )
        # A window cut by the end is told too. One cut by a stop goes on when the run is resumed.
        rest = self.store.peek_window()
        trainer.metrics.update(rest)
        if not trainer.stop_asked:
            trainer.publish(rest)

    def epoch(self) -> None:
        """One epoch, or what is left of it."""
        trainer, state, feed = self.trainer, self.state, self.feed
        take_step = self.manual_step if self.manual else self.step
        for hook in self.hooks["on_train_epoch_start"]:
            hook(trainer)
        if state.validating:
            self.finish_validation()
            if trainer.done or state.position == 0:
                return
        steps = feed.steps(state.epoch, state.position)
        for batches, sizes, total, advance in trainer.signals.interruptible(steps):
            outputs = take_step(batches, sizes, total)
            faultpoint("step.end")
            state.global_step += 1
            state.position += advance
            state.samples += advance
            for hook in self.on_step_end:
                hook(trainer, outputs)
            eventful = feed.ended or state.global_step >= self.next_event
            if eventful:
                self.events(feed.ended)
                if state.validating:
                    return
            if self.agreement is not None:
                self.agreement.at_boundary()
            for hook in self.on_step_boundary:
                hook(trainer)
            if feed.ended or trainer.stop_asked or (eventful and trainer.done):
                return
        if trainer.interrupted:
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
                output = self.ghost_step(batch)
            elif self.takes_index:
                output = self.training_step(batch, state.batch_idx)
            else:
                output = self.training_step(batch)
            if size:
                outputs.append(output)
            state.batch_idx += 1
            loss, weight = output, None if total else size
            if type(loss) is not Tensor or not loss.requires_grad or loss.numel() != 1:
                loss, weight = read_training_output(output, weight, store, f"{trainer.place}{self.source}")
            if loss.is_cpu or self.reads_losses:
                value = loss.item()
                if guard is None or not size or math.isfinite(value):
                    self.loss_value.add(value, size if weight is None else float(weight))
                else:
                    loss = guard.poison(loss, index, value)
            else:
                store.log("loss", loss, weight=weight)
                if guard is not None:
                    loss = guard.poison_unread(loss)
            if many or self.world > 1:
                loss = self.weigh(loss, weight, weights, index, size * self.world / (total or 1))
            if weights and index == len(batches) - 1:  # on its way while backward runs
                sum_of_weights = strategy.reduce_later(self.as_word(sum(weights)))
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
                self.advance(schedule, state.global_step + 1)
        elif guard is not None and guard.skipped_by_strategy():
            self.hold_back(guard, batches, sizes)
        return outputs

    def hold_back(self, guard: Guard, batches: list[Any], sizes: list[int]) -> None:
        """A loss or gradient is not finite: an error, or a step without an update."""
        guard.hold_back(
            self.optimizer, len(batches), lambda samples: find_origin(self, batches, sizes, samples)
        )

    def ghost_step(self, batch: Any) -> Any:
        """A rank without a sample runs the step's first one with weight 0; nothing of it is kept."""
        with nothing_kept(self.trainer, self.store):
            output = self.training_step(*self.arguments(batch))
            if self.manual:
                return output
            loss, weight = read_training_output(output, None, self.trainer.store, self.trainer.place)
        return loss if weight is None else {"loss": loss, "weight": 0.0}

    def arguments(self, batch: Any, after: int = 0) -> tuple[Any, ...]:
        """What training_step takes for a micro-batch, so many after the next one."""
        return (batch, self.state.batch_idx + after)[: 2 if self.takes_index else 1]

    def manual_step(self, batches: list[Any], sizes: list[int], total: int | None) -> list[Any]:
        """A step whose backward and updates are the user's own."""
        trainer, state = self.trainer, self.state
        for hook in self.on_step_start:
            hook(trainer, batches)
        self.store.weight = sizes[0]
        # What manual_backward multiplies a loss by: ranks average, a batch counts by its samples.
        trainer.share = 1.0 if total is None else sizes[0] * self.world / total
        if not sizes[0]:
            output = self.ghost_step(batches[0])
        elif self.takes_index:
            output = self.training_step(batches[0], state.batch_idx)
        else:
            output = self.training_step(batches[0])
        state.batch_idx += 1
        if sizes[0]:
            log_evaluation_output(output, self.store)
        self.strategy.precision.update()
        return [output] if sizes[0] else []

    def weigh(self, loss: Tensor, weight: Any, weights: list[Any], index: int, share: float) -> Tensor:
        """A micro-batch's part of the step's loss, sum(weight * loss) / sum(weight) over all ranks.

        A weight known only now is kept in ``weights``; the sum is divided out when all are known.

        Args:
            share: The part by samples, times the ranks: gradients are averaged over them.
        """
        if len(weights) != (0 if weight is None else index):
            raise _some_weights(self.trainer.place)
        if weight is None:
            return loss if share == 1.0 else loss * share
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
                optimizer, (self.state.weight_reference or 1.0) * self.world / total
            )

    def show_and_clip(self) -> None:
        """Show the gradients to hooks, then clip them."""
        optimizer, settings = self.optimizer, self.trainer.settings
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
        trainer, state = self.trainer, self.state
        step = state.global_step - state.epoch_start
        where = (state.global_step, state.epoch, step, epoch_ended, self.clock)
        if self.logged_step != state.global_step and (
            state.global_step == 1 or self.log_cadence.due(*where)
        ):
            self.write_log()
        cadence = self.validate_cadence if state.validated_step != state.global_step else None
        validates = cadence is not None and (state.validating or cadence.due(*where))
        if validates:
            state.validating = "epoch" if epoch_ended else "step"
            if not trainer.validate_during_fit():
                return
            state.validating = ""
            state.validated_step, state.validated = state.global_step, True
        if epoch_ended:
            self.end_epoch()
        if validates or epoch_ended:
            trainer.agree()
        if cadence is not None and validates:
            cadence.last_seconds = self.clock()  # the validation's own time does not count
        self.next_event = self.find_next_event()

    def finish_validation(self) -> None:
        """Do the validation again that a signal cut short before this run was resumed, and what follows."""
        self.events(epoch_ended=self.state.validating == "epoch")
        if not self.state.validating:
            self.trainer.redone_step = self.state.global_step
            for hook in self.on_step_boundary:
                hook(self.trainer)

    def find_next_event(self) -> float:
        """The earliest step after which anything but the next step may have to happen."""
        state, trainer = self.state, self.trainer
        if state.global_step == 0 or trainer.settings.max_time is not None:
            return state.global_step + 1
        cadences = [c for c in (self.log_cadence, self.validate_cadence) if c is not None]
        steps = [c.next_step(state.global_step, state.epoch) for c in cadences]
        return min([*steps, math.inf if trainer.max_steps is None else trainer.max_steps])

    def end_epoch(self) -> None:
        """Epoch means, hooks, then the schedules that go by epochs."""
        faultpoint("epoch.end")
        trainer, state = self.trainer, self.state
        window = self.store.close_window()
        means = {f"{name}_epoch": value for name, value in self.store.close_epoch().items()}
        trainer.publish(window | means | self.optimization.learning_rates())
        trainer.call_and_flush("on_train_epoch_end")
        if not self.manual:
            for schedule in self.optimization.of_interval("epoch"):
                self.advance(schedule, state.epoch + 1)
        state.validated = False
        state.epoch += 1
        state.begin_epoch()

    def advance(self, schedule: Schedule, count: int) -> None:
        """Step a schedule if this is one of its turns."""
        monitor = schedule.monitor
        if count % schedule.frequency:
            return
        if monitor is None:
            schedule.scheduler.step()
        elif self.state.validated or not monitor.startswith("val/"):  # an old value is no news
            value = self.trainer.require_metric(monitor, "the learning rate schedule")
            schedule.scheduler.step(value)

    def write_log(self) -> None:
        """Reduce the window and hand it to the loggers, with learning rates and speed."""
        now, samples = time.perf_counter(), self.state.samples
        before, samples_before = self.logged_at
        self.logged_at, self.logged_step = (now, samples), self.state.global_step
        speed = {"perf/samples_per_second": (samples - samples_before) / max(now - before, 1e-9)}
        values = self.store.close_window()
        self.trainer.publish(values | self.optimization.learning_rates() | speed)


def _no_batch(feed: Feed, epoch: int) -> PacelineError:
    again = "a generator is used up after one epoch: pass a DataLoader or a list"
    empty = "see that the dataset is not empty, and drop_last does not drop all of it"
    return PacelineError(
        "the training data gave no batch" + (" a second time" if epoch else ""),
        got=str(feed.fingerprint()),
        fix=again if epoch else empty,
    )


def _some_weights(place: str) -> PacelineError:
    return PacelineError(
        "training_step returned a 'weight' for some micro-batches of a step only",
        where=place,
        fix="return a weight always, or never",
    )


def source_of(function: Callable[..., Any]) -> str:
    """``, file:line`` of a function, where Python knows it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f", {code.co_filename}:{code.co_firstlineno}" if code else ""


def positional_arguments(function: Callable[..., Any]) -> int:
    """How many positional arguments a bound step takes."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 3
    return sum(
        k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds
    )
