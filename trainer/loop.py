"""The training loop, as the algorithm reads. docs/loop.md shows it with every hook in its place."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..durations import Cadence, Duration
from ..errors import PacelineError
from .feed import Feed
from .optimization import Optimization, Schedule
from .output import log_evaluation_output, read_training_output

if TYPE_CHECKING:
    from .evaluation import EvaluationLoop
    from .trainer import Trainer

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
        self.feed, self.optimization, self.validation = feed, optimization, validation
        self.store = trainer.train_store
        self.manual = not module.automatic_optimization
        self.training_step = self.strategy.step_function(module, "training_step")
        self.takes_index = positional_arguments(module.training_step) > 1
        self.loss_value = self.store.value("loss")
        self.nonfinite = settings.nonfinite
        self.clock = trainer.clock
        self.clip_norm, self.clip_value = settings.clip_grad_norm, settings.clip_grad_value
        self.step_schedules = optimization.of_interval("step") if not self.manual else []
        self.hooks = trainer.hooks
        self.on_step_start = trainer.hooks["on_step_start"]
        self.on_before_optimizer_step = trainer.hooks["on_before_optimizer_step"]
        self.on_step_end = trainer.hooks["on_step_end"]
        self.on_step_boundary = trainer.hooks["on_step_boundary"]
        self.touches_gradients = bool(
            self.clip_norm is not None
            or self.clip_value is not None
            or self.on_before_optimizer_step
        )
        length = feed.steps_per_epoch
        log_every = Duration.parse(settings.log_every or _LOG_EVERY, where="log_every")
        self.log_cadence = Cadence(log_every, length)
        self.validate_cadence = None
        if validation is not None and settings.validate_every is not None:
            every = Duration.parse(settings.validate_every, where="validate_every")
            self.validate_cadence = Cadence(every, length)
        self.validated_at = -1
        self.logged_at = (time.perf_counter(), self.state.samples)

    def run(self) -> None:
        """Train until the trainer is done."""
        while not self.trainer.done:
            self.epoch()

    def epoch(self) -> None:
        """One epoch, or what is left of it."""
        trainer, state, feed = self.trainer, self.state, self.feed
        for hook in self.hooks["on_train_epoch_start"]:
            hook(trainer)
        for batches, sizes, advance in feed.steps(state.epoch, state.position):
            if self.manual:
                self.manual_step(batches, sizes)
            else:
                self.step(batches, sizes)
            state.position += advance
            self.after_step(feed.ended)
            if feed.ended or trainer.done:
                return
        if state.position == 0:
            raise PacelineError(
                "the training data gave no batch" + (" a second time" if state.epoch else ""),
                got=str(feed.fingerprint()),
                fix="a generator is used up after one epoch: pass a DataLoader or a list"
                if state.epoch
                else "see that the dataset is not empty, and drop_last does not drop all of it",
            )
        self.after_step(epoch_ended=True)

    def step(self, batches: list[Any], sizes: list[int]) -> None:
        """One optimizer step: its micro-batches, then one update."""
        trainer, state, store, strategy = self.trainer, self.state, self.store, self.strategy
        for hook in self.on_step_start:
            hook(trainer, batches)
        outputs: list[Any] = []
        total, last = sum(sizes), len(batches) - 1
        weight_sum: Any = None
        finite = True
        for index, batch in enumerate(batches):
            store.weight = size = sizes[index]
            if self.takes_index:
                output = self.training_step(batch, state.batch_idx)
            else:
                output = self.training_step(batch)
            outputs.append(output)
            state.batch_idx += 1
            loss, weight = output, None
            if type(loss) is not Tensor or not loss.requires_grad or loss.numel() != 1:
                loss, weight = read_training_output(output, store, trainer.place)
            if self.nonfinite != "ignore" or loss.is_cpu:
                value = loss.item()
                if not math.isfinite(value) and self.nonfinite != "ignore":
                    self.refuse(value, index)
                    finite = False
                    break
                self.loss_value.add(value, size if weight is None else float(weight))
            else:
                store.log("loss", loss, weight=weight)
            if last:
                # The gradient of the step is sum(weight * loss) / sum(weight) over its micro-batches.
                strategy.synchronise_gradients(index == last)
                if index and (weight is None) != (weight_sum is None):
                    raise PacelineError(
                        "training_step returned a 'weight' for some micro-batches of a step only",
                        where=trainer.place,
                        fix="return a weight always, or never",
                    )
                if weight is None:
                    loss = loss * (size / total)
                else:
                    loss = loss * (weight / self.weight_reference(weight))
                    weight_sum = weight if weight_sum is None else weight_sum + weight
            strategy.backward(loss)
        if finite:
            self.update(weight_sum)
        else:
            self.optimization.optimizers[0].zero_grad(set_to_none=True)
            state.skipped_steps += 1
        self.finish(outputs, total)

    def update(self, weight_sum: Any) -> None:
        """Correct, clip and apply the gradients, then the schedules that go by steps."""
        optimizer, strategy = self.optimization.optimizers[0], self.strategy
        if self.touches_gradients or weight_sum is not None:
            strategy.unscale(optimizer)
            if weight_sum is not None:
                strategy.multiply_gradients(optimizer, self.state.weight_reference / weight_sum)
            for hook in self.on_before_optimizer_step:
                hook(self.trainer, optimizer)
            if self.clip_norm is not None or self.clip_value is not None:
                strategy.clip(optimizer, self.clip_norm, self.clip_value)
        if strategy.step(optimizer):
            for schedule in self.step_schedules:
                self.advance(schedule, self.state.global_step + 1)

    def manual_step(self, batches: list[Any], sizes: list[int]) -> None:
        """A step whose backward and updates are the user's own."""
        trainer, state = self.trainer, self.state
        for hook in self.on_step_start:
            hook(trainer, batches)
        self.store.weight = sizes[0]
        if self.takes_index:
            output = self.training_step(batches[0], state.batch_idx)
        else:
            output = self.training_step(batches[0])
        state.batch_idx += 1
        log_evaluation_output(output, self.store)
        self.finish([output], sizes[0])

    def finish(self, outputs: list[Any], samples: int) -> None:
        """Count the step, tell the watchers, and log where a log is due."""
        trainer, state = self.trainer, self.state
        state.global_step += 1
        state.samples += samples
        for hook in self.on_step_end:
            hook(trainer, outputs)
        if state.global_step == 1 or self.log_cadence.due(
            state.global_step, state.epoch, self.feed.ended, self.clock
        ):
            self.write_log()

    def after_step(self, epoch_ended: bool) -> None:
        """Validation, the end of the epoch, then the boundary at which the state is whole."""
        trainer, state = self.trainer, self.state
        cadence = self.validate_cadence
        if cadence is not None and self.validated_at != state.global_step:
            if cadence.due(state.global_step, state.epoch, epoch_ended, self.clock):
                self.validated_at = state.global_step
                trainer.validate_during_fit()
        if epoch_ended:
            self.end_epoch()
        for hook in self.on_step_boundary:
            hook(trainer)

    def end_epoch(self) -> None:
        """Epoch means, hooks, then the schedules that go by epochs."""
        trainer, state = self.trainer, self.state
        window = self.store.close_window()
        means = {f"{name}_epoch": value for name, value in self.store.close_epoch().items()}
        trainer.publish(window | means | self.optimization.learning_rates())
        trainer.call_and_flush("on_train_epoch_end")
        if not self.manual:
            for schedule in self.optimization.of_interval("epoch"):
                self.advance(schedule, state.epoch + 1)
        state.epoch += 1
        state.position = state.batch_idx = 0

    def advance(self, schedule: Schedule, count: int) -> None:
        """Step a schedule if this is one of its turns."""
        if count % schedule.frequency:
            return
        if schedule.monitor is None:
            schedule.scheduler.step()
        else:
            schedule.scheduler.step(
                self.trainer.require_metric(schedule.monitor, "the learning rate schedule")
            )

    def write_log(self) -> None:
        """Reduce the window and hand it to the loggers, with learning rates and speed."""
        now, samples = time.perf_counter(), self.state.samples
        before, samples_before = self.logged_at
        self.logged_at = (now, samples)
        speed = {"perf/samples_per_second": (samples - samples_before) / max(now - before, 1e-9)}
        values = self.store.close_window()
        self.trainer.publish(values | self.optimization.learning_rates() | speed)

    def weight_reference(self, weight: Any) -> float:
        """A power of two near the weights, so that scaled losses keep the loss's own range."""
        if self.state.weight_reference is None:
            self.state.weight_reference = 2.0 ** round(math.log2(max(float(weight), 1e-30)))
        return self.state.weight_reference

    def refuse(self, value: float, micro_batch: int) -> None:
        """A loss that is not finite: an error, or (``nonfinite="skip"``) a step left out."""
        samples = self.feed.samples_of(micro_batch)
        shown = ", ".join(map(str, samples[:8])) + (", ..." if len(samples) > 8 else "")
        if self.nonfinite == "skip":
            self.trainer.say(f"{self.trainer.place}: the loss is {value}; the update is skipped")
            return
        raise PacelineError(
            f"the loss is {value}; nothing was updated",
            where=f"{self.trainer.place}, rank {self.trainer.rank}"
            + (f", dataset indices {shown}" if samples else ""),
            fix="look at those samples, lower the learning rate or set clip_grad_norm; "
            'nonfinite="skip" leaves such steps out',
        )


def positional_arguments(function: Callable[..., Any]) -> int:
    """How many positional arguments a bound step takes."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 3
    return sum(
        k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for k in kinds
    )
