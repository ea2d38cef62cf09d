"""The training loop, as the algorithm reads. docs/extending/loop.md adds every hook."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ...common.faultpoints import faultpoint, with_faultpoint
from ...durations import Cadence, Duration
from ...errors import PacelineError
from ..data.feed import Feed
from .fit_context import FitContext
from .memory_retry import MemoryRetry
from .optimizer_step import OptimizerStep

_LOG_EVERY = "50st"
_SECONDS = "perf/seconds_since_log_point"


class TrainLoop:
    """Everything a step needs is looked up here, once."""

    def __init__(self, context: FitContext) -> None:
        module, settings = context.module, context.settings
        self.context, self.trainer = context, context.trainer
        self.state, self.stop, self.step = context.state, context.stop, context.step
        context.closing.callback(context.step.begin, [], [], None)  # keeps no batch and no graph
        self.feed, self.optimization = context.feed, context.optimization
        self.manual = None if module.automatic_optimization else context.manual
        self.logger, self.store = context.logger, context.logger.train
        self.seconds = context.stop.seconds
        self.optimizer_step = OptimizerStep(context)
        self.read = self.feed.steps
        self.run_step = self.optimizer_step.automatic if self.manual is None else self.optimizer_step.manual
        if settings.batch_size == "auto":
            retry = MemoryRetry(context, self.optimizer_step)
            self.read, self.run_step = retry.steps, retry.run
        self.run_step = with_faultpoint("step.end", self.run_step, after=True)
        self.hooks = context.hooks
        length = context.limits.steps_in(context.state.epoch)
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
        self.replicas, self.ends_by_time = context.replicas, context.limits.max_seconds is not None
        self.logged_step = self.state.global_step or -1
        self.logged_at = (time.perf_counter(), self.state.samples)
        self.next_comparison = 0.0

    def run(self) -> None:
        """Train until there is a reason to stop."""
        stop = self.stop
        stop.agree()
        while not stop.done:
            self.epoch()
            self.step.begin([], [], None)  # what follows may need the memory
        self.step.between_steps = False  # not before it is known that the last update was made
        self.optimizer_step.finish()
        self.step.between_steps = True
        stop.agree()  # a signal may have come after the last agreement
        if self.manual is not None and not self.manual.has_stepped:
            self.context.directory.log_line(
                "no weight was updated: with manual optimization training_step must call optimizer.step()"
            )
        # A window cut by the end is logged too. One cut by a stop continues when the run is resumed.
        rest = self.logger.peek_window()
        self.logger.latest.update(rest)
        if not stop.asked:
            self.logger.publish(rest)

    def epoch(self) -> None:
        """One epoch, or what is left of it."""
        trainer, state, feed, stop, step = self.trainer, self.state, self.feed, self.stop, self.step
        each_step = self.hooks.each_step
        stop.epoch_over = False
        step.next_event = 0.0  # an epoch may have another length than the one before
        feed.prepare(state.epoch)
        for hook in self.hooks["on_train_epoch_start"]:
            hook(trainer)
        if state.validating:
            self.events(epoch_ended=state.validating == "epoch")  # a signal cut it short before a resume
            if stop.done or state.position == 0:
                return
        steps = self.read(state.epoch, state.position)
        for batches, sizes, total, advance in self.context.signals.interruptible(steps):
            step.between_steps = False
            outputs = self.run_step(batches, sizes, total)
            state.global_step += 1
            state.position += advance
            state.samples += advance
            due = feed.ended or state.global_step >= step.next_event
            for hook in self.hooks_after("on_step_end", feed.ended) if due else each_step["on_step_end"]:
                hook(trainer, outputs)
            ended = feed.ended or stop.epoch_over
            if ended or step.validates or state.global_step >= step.next_event:
                self.events(ended)
                if ended or state.validating or stop.done:
                    return
            else:
                step.between_steps = True
                for hook in each_step["on_step_boundary"]:
                    hook(trainer)
                if (self.ends_by_time or stop.requested is not None) and stop.done:
                    return
        if stop.interrupted:
            return
        if state.position == 0:
            raise _no_batch(feed, state.epoch)
        step.between_steps = False
        self.events(epoch_ended=True)

    def events(self, epoch_ended: bool) -> None:
        """What does not follow every step: a log point, a validation, the end of the epoch, checkpoints."""
        state, at = self.state, self.state.after_step(epoch_ended, self.context.limits)
        repeated = bool(state.validating)
        if state.global_step >= self.next_comparison:
            self.replicas.compare(state.global_step)
        if self.logged_step != state.global_step and (
            state.global_step == 1 or self.log_cadence.due(at, self.seconds)
        ):
            self.write_log()
        cadence = self.validate_cadence
        validates = state.validating or self.step.validates
        validates = validates or (cadence is not None and cadence.due(at, self.seconds))
        self.step.validates = False
        if self.context.validation is None or state.validated_step == state.global_step:
            validates = False
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
        if repeated:  # a checkpoint of this step is of before its validation
            self.context.checkpoints.allow_again(state.global_step)
        self.step.between_steps = True
        self.stop.at_boundary()
        for hook in self.hooks_after("on_step_boundary", bool(validates) or epoch_ended):
            hook(self.trainer)
        self.step.next_event = self.find_next_event()

    def hooks_after(self, name: str, every: bool) -> tuple[Callable[..., None], ...]:
        """The hooks that are due with the step that was just counted; or ``every`` one."""
        return self.hooks[name] if every else self.hooks.after(name, self.state.global_step)

    def validate(self, epoch_ended: bool) -> bool:
        """A validation, its values published; False where a signal cut it short."""
        state, validation = self.state, self.context.validation
        assert validation is not None
        state.validating = "epoch" if epoch_ended else "step"
        self.step.between_steps = True
        whole = validation.run(self.publish_validation)
        self.context.report_compilation()
        if whole:
            state.validating = ""
            state.validated_step = state.global_step
        return whole

    def publish_validation(self, values: dict[str, float]) -> None:
        """Hand the values of a validation to the loggers; hooks that judge by them come next."""
        self.step.between_steps = False
        self.logger.publish(values)

    def find_next_event(self) -> float:
        """The earliest step after which anything but the next step may have to happen."""
        state, limits = self.state, self.context.limits
        step, at = state.global_step, state.after_step(False, limits)
        self.next_comparison = self.replicas.due_after(step)
        cadences = [c for c in (self.log_cadence, self.validate_cadence) if c is not None]
        due = [self.hooks.next_due(at), *(c.next_step(at) for c in cadences)]
        last = math.inf if limits.max_steps is None else limits.max_steps
        return min(*due, self.next_comparison, step + self.stop.next_boundary, last)

    def end_epoch(self) -> None:
        """Epoch means, hooks, then the schedules that go by epochs."""
        faultpoint("epoch.end")
        if not self.stop.epoch_over:  # a hook may end an epoch before its first loss
            self.optimizer_step.without_loss.end_epoch()
        state, logger = self.state, self.logger
        window = logger.close_window()
        means = {f"{n}_epoch": v for n, v in logger.close_epoch().items() if n != _SECONDS}
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
        self.store.log(_SECONDS, now - before, reduce="max")  # by the slowest rank: one value for all
        values = self.logger.close_window()
        seconds = max(values.pop(_SECONDS), 1e-9)
        speed = {"perf/samples_per_second": (samples - samples_before) / seconds}
        if self.optimizer_step.overflows is not None:
            values |= self.optimizer_step.overflows.values()
        self.logger.publish(values | self.optimization.learning_rates() | speed)
        self.context.report_compilation()


def _no_batch(feed: Feed, epoch: int) -> PacelineError:
    again = "a generator is exhausted after one epoch: pass a DataLoader or a list"
    empty = "see that the dataset is not empty, and drop_last does not drop all of it"
    return PacelineError(
        "the training data has no batch" + (" a second time" if epoch else ""),
        code="no-data",
        got=str(feed.fingerprint()),
        fix=again if epoch else empty,
    )
