"""What a trainer knows of one module: its hooks, its values, where Lightning would say the run is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ....trainer.data.feed import limited
from . import arguments
from .arguments import FOREVER
from .checkpoint_content import CheckpointContent, content_of
from .default_dtype import default_dtype, uncached_casts
from .hooks import Hooks, overrides
from .logged import LoggedValues
from .optimizer import LightningOptimizer
from .saved import Loaded
from .validation_rule import ValidationRule

_DTYPES = {
    "64": torch.float64,
    "64-true": torch.float64,
    "bf16-true": torch.bfloat16,
    "16-true": torch.float16,
}


class Session:
    """One module with one trainer, over its fits and evaluations.

    Args:
        trainer: The trainer that callbacks and the module see.
        module: The ``LightningModule``.
        callbacks: Lightning's, those that the module configures included.
        bases: The classes whose own hooks and methods do nothing.

    Attributes:
        ours: The ``paceline.Trainer`` that runs it.
        adapter: The module as that trainer sees it.
        rule: When Lightning validates, where our loop does not do so by itself.
        datamodule: The ``LightningDataModule`` of the stage.
        data: The same, as our loop reads it.
        lines: What is to be explained to the user.
        stage_name: ``"validation"``, ``"test"`` or ``"predict"`` in an evaluation; else ``"train"``.
        sanity_checking: Whether the validation under way is the sanity check.
        manual_steps: Optimizer steps under manual optimization.
        cancelled: Steps of our loop that ``on_train_batch_start`` cancelled.
        batches_before: Batches of this rank in the epochs that are over.
        evaluated_batches: Batches of the stage's evaluations, by dataloader.
        has_failed: Whether an error has ended the stage.
        loads: The checkpoint whose weights an evaluation takes; None: as they are.
        resumes: The checkpoint that a fit resumes from; None: it begins.
        content: What ``on_save_checkpoint`` made of the last checkpoint's file.
        several: Whether the prediction has several dataloaders.
        has_updated: Whether the step under way has changed the weights already.
        is_ending_step: Whether the last hook of a batch is called, when our loop has counted the step.
        partial_epoch: Whether the fit ended within an epoch, which Lightning counts.
        at_the_end: Called when all that an epoch or an evaluation logs is published.
        place: The counters at which an earlier fit of the trainer has ended, and this one begins.
    """

    def __init__(
        self, trainer: Any, module: Any, callbacks: Sequence[Any], bases: tuple[type, ...]
    ) -> None:
        self.trainer, self.module, self.bases = trainer, module, bases
        self.callbacks = list(callbacks)
        self.hooks = Hooks(trainer, module, callbacks, bases)
        self.values = LoggedValues(lambda: self.ours.metrics, self.log_line)
        self.ours: Any = None
        self.adapter: Any = None
        self.rule: ValidationRule | None = None
        self.datamodule: Any = None
        self.data: Any = None
        self.stage_name = "train"
        self.sanity_checking = False
        self._evaluation_store: Any = None
        self.lines: list[str] = []
        self._handed: list[LightningOptimizer] = []
        self._said: list[str] = []
        self.manual_steps = self.cancelled = 0
        self.several = False
        self.loads: Loaded | None = None
        self.resumes: Loaded | None = None
        self.content: CheckpointContent | None = None
        self.has_updated = self.partial_epoch = self.has_failed = self.is_ending_step = False
        self.batches_before = 0
        self.evaluated_batches: Counter[int] = Counter()
        self.at_the_end: list[Callable[[], None]] = []
        self.place: dict[str, Any] = {}

    def for_copy(self, module: Any) -> Session:
        """What the same trainer knows of a copy of the module."""
        found = Session(self.trainer, module, (), self.bases)
        found.ours, found.stage_name = self.ours, self.stage_name
        return found

    def look_again(self, callbacks: Sequence[Any]) -> None:
        """A stage begins: callbacks and methods may be others than before."""
        self.callbacks, self.content = list(callbacks), None
        self.hooks = Hooks(self.trainer, self.module, callbacks, self.bases)
        if self.adapter is not None:
            self.adapter.hooks = self.hooks

    @property
    def clips_itself(self) -> bool:
        """Whether the module overrides how gradients are clipped."""
        names = ("configure_gradient_clipping", "clip_gradients")
        return any(overrides(self.module, name, *self.bases) for name in names)

    @property
    def ends_early(self) -> bool:
        """Whether ``trainer.should_stop`` ends the run here."""
        run, wanted = self.ours._run, self.trainer._should_stop
        return bool(wanted and not run.limits.below_minimum(run.state))

    def numbers_of_a_step(self) -> AbstractContextManager[None]:
        """New tensors of steps have the dtype of ``64-true`` and the like; mixed ones cast as Lightning."""
        precision = str(self.trainer.given["precision"])
        return uncached_casts() if "mixed" in precision else default_dtype(_DTYPES.get(precision))

    def say(self) -> None:
        """Explain what means something else here, once."""
        for line in self.lines:
            if line not in self._said:
                self._said.append(line)
                self.log_line(line)

    def log_line(self, text: str) -> None:
        """A line for the user."""
        self.ours.log_line(text)

    # -- where the run is ----------------------------------------------------------------------

    @property
    def is_manual(self) -> bool:
        """Whether the module updates its weights itself."""
        return not self.adapter.automatic_optimization

    @property
    def global_step(self) -> int:
        """Optimizer steps, as Lightning counts them: under manual optimization those of all optimizers."""
        if self.adapter is not None and self.is_manual:
            return self.manual_steps
        return int(self.ours.global_step) - self.cancelled + self.has_updated

    @property
    def current_epoch(self) -> int:
        """The epoch under way, from 0."""
        return int(self.ours.epoch) + self.partial_epoch

    @property
    def accumulate_grad_batches(self) -> int:
        """Micro-batches in the step under way."""
        return max(len(self.adapter.batches), 1) if self.adapter.batches else int(self.accumulate)

    @property
    def accumulate(self) -> int:
        """Micro-batches in a whole step of this epoch."""
        fit = self.ours._fit
        return 1 if fit is None else int(fit.feed.micro_batches)

    @property
    def batch_idx(self) -> int:
        """Batches of this epoch that this rank has done, from 0."""
        return int(self.ours._run.state.batch_idx)

    @property
    def batches_begun(self) -> int:
        """The same, with the one that is under way."""
        under_way = self.adapter.batch_under_way
        return self.batch_idx if under_way is None else under_way + 1

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches of this rank in an epoch; None where that is unknown."""
        steps, accumulate = self.ours.steps_per_epoch, self.accumulate
        if steps is None or accumulate == 1:
            return None if steps is None else int(steps)
        most = int(steps) * accumulate
        found = arguments.length_of(self.ours._fit.feed.data)
        if found is None:
            return most
        mine = -(-limited(found, self.trainer.limit_train_batches) // self.ours.ranks.data_world_size)
        return mine if most - accumulate < mine <= most else most

    def lines_of_settings(self) -> list[str]:
        """What a part of the data comes to in batches, and when it validates.

        Raises:
            PacelineError: for a part that is less than a batch, and where no validation would come.
        """
        fit, given = self.ours._fit, self.trainer.given
        lines = arguments.part_of("limit_train_batches", given["limit_train_batches"], fit.feed.data)
        for feed in () if fit.validation is None else fit.validation.feeds.values():
            lines += arguments.part_of("limit_val_batches", given["limit_val_batches"], feed.data)
        rule = () if self.rule is None else self.rule.lines(self.batches_per_epoch, self.accumulate)
        return [*lines, *rule]

    @property
    def is_last_batch(self) -> bool:
        """Whether the step under way is the last of its epoch, where that can be known."""
        fit = self.ours._fit
        return fit is not None and bool(fit.feed.ended)

    @property
    def total_steps(self) -> float:
        """Optimizer steps of the whole fit; infinite where that is unknown."""
        total = self.ours.total_steps
        if total is None or total >= FOREVER:
            return math.inf
        return int(total) - self.cancelled * int(total == self.ours._run.limits.max_steps)

    @property
    def has_validated(self) -> bool:
        """Whether all that validations log is known."""
        fit = self.ours._fit
        return fit is None or fit.validation is None or self.ours._run.state.validated_step >= 0

    @property
    def store(self) -> Any:
        """Where the values of the stage under way are kept."""
        logger = self.adapter._logger
        return self._evaluation_store or (logger and logger.train)

    @property
    def is_evaluating(self) -> bool:
        """Whether values are those of an evaluation."""
        return self._evaluation_store is not None

    def begin_evaluation(self, stage: str) -> None:
        """Values are those of an evaluation from here on."""
        self.stage_name, self._evaluation_store = stage, self.adapter._logger.current
        self.values.evaluation_steps.begin()

    def end_evaluation_batch(self, dataloader_idx: int) -> None:
        """A row of the values of the batch, by the number of batches that were evaluated before it."""
        if self.sanity_checking or self._evaluation_store is None:  # None: of a step that is called alone
            return
        step = self.evaluated_batches[dataloader_idx]
        self.evaluated_batches[dataloader_idx] += 1
        row = self.values.evaluation_steps.row(self._evaluation_store.loader_name)
        if row and self.trainer.is_global_zero:
            for logger in self.trainer.loggers:
                logger.log_evaluation(row, step)

    def end_evaluation(self) -> None:
        """They are those of training again."""
        self.stage_name, self._evaluation_store = "train", None

    def publish_whole(self) -> None:
        """All that an epoch or an evaluation logs is published."""
        waiting, self.at_the_end = self.at_the_end, []
        for call in waiting:
            call()

    @property
    def logged_hparams(self) -> dict[str, Any] | None:
        """What data module and module want loggers to write; None where none has saved any."""
        owners = [one for one in (self.datamodule, self.module) if one is not None]
        logged = [one.hparams for one in owners if getattr(one, "_log_hyperparams", False)]
        return {name: value for one in logged for name, value in one.items()} if logged else None

    # -- checkpoints ---------------------------------------------------------------------------

    def content_at(self, trainer: Any, states: Mapping[str, Any] | None = None) -> CheckpointContent:
        """What the file of a checkpoint of now holds; hooks are called once for a step."""
        if self.content is None or self.content.step != trainer.global_step:
            self.content = content_of(self, trainer, states)
            self.lines = self.content.lines
            self.say()
        return self.content

    # -- from one fit to the next --------------------------------------------------------------

    def continue_there(self) -> None:
        """A fit begins, where the last one of this trainer ended."""
        self.manual_steps = self.place.get("manual_steps", 0)
        self.batches_before = self.place.get("batches_before", 0)
        self.cancelled = self.place.get("cancelled", 0)
        self.take_limits()
        state = self.ours._run.state
        state.load_state_dict(self.place)
        state.begin_epoch()

    def take_counters(self, other: Session) -> None:
        """Count on from where the session of another module is."""
        self.manual_steps, self.cancelled = other.global_step, other.cancelled
        self.batches_before, self.partial_epoch = other.batches_before, other.partial_epoch

    def take_limits(self) -> None:
        """Let the fit have the limits that the trainer has now."""
        limits, given = self.ours._run.limits, self.trainer.given
        ours = arguments.limits(given, self.is_manual)
        limits.max_epochs, steps = ours["max_epochs"], ours["max_steps"]
        limits.max_steps = None if steps is None else steps + self.cancelled
        limits.min_epochs, limits.min_steps = given["min_epochs"] or 0, given["min_steps"] or 0

    def ended_at(self) -> dict[str, Any]:
        """The counters with which another fit would begin."""
        state = self.ours._run.state
        return {
            "epoch": state.epoch + self.partial_epoch,
            "global_step": state.global_step,
            "samples": state.samples,
            "elapsed": state.elapsed,
            "manual_steps": self.manual_steps,
            "batches_before": self.batches_before + state.batch_idx,
            "cancelled": self.cancelled,
        }

    # -- what steps say ------------------------------------------------------------------------

    def count_update(self) -> None:
        """The weights were changed, and our loop has not counted the step yet."""
        if self.adapter.automatic_optimization:
            self.has_updated = True
        else:
            self.manual_steps += 1

    def manual_optimizers(self, toggle: Any) -> list[LightningOptimizer]:
        """What a module with manual optimization steps: the same objects throughout a fit.

        Args:
            toggle: ``toggle_optimizer`` and ``untoggle_optimizer`` of the module.
        """
        ours = self.ours.loop.manual_optimization.optimizers
        if [id(one) for one in ours] != [id(one._inner) for one in self._handed]:
            self._handed = [LightningOptimizer(one, self.count_update, toggle) for one in ours]
        return list(self._handed)

    def cancel_step(self, batches: int = 0) -> None:
        """The epoch ends, and this step is none.

        Args:
            batches: The number of the batch for which ``on_train_batch_start`` returned -1, from 1:
                Lightning steps the schedules for it; 0: there was none.
        """
        self.adapter.ends = True
        self.cancel(1)
        self.ours.loop.end_epoch()
        for config in self.adapter.configs if batches and not self.is_manual else ():
            if not config.reduce_on_plateau and config.due("step", batches):
                self.module.lr_scheduler_step(config.scheduler, None)

    def cancel(self, steps: int) -> None:
        """So many steps of our loop are none of Lightning's."""
        self.cancelled += steps
        limits = self.ours._run.limits
        if limits.max_steps is not None:
            limits.max_steps += steps
