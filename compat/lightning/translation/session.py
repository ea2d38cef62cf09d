"""What a trainer knows of one module: its hooks, its values, where Lightning would say the run is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from . import arguments
from .arguments import FOREVER
from .hooks import Hooks, overrides
from .logged import LoggedValues
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
        has_failed: Whether an error has ended the stage.
        loads: The checkpoint whose weights an evaluation takes; None: as they are.
        several: Whether the prediction has several dataloaders.
        has_updated: Whether the step under way has changed the weights already.
        partial_epoch: Whether the fit ended within an epoch, which Lightning counts.
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
        self._said: list[str] = []
        self.manual_steps = self.cancelled = 0
        self.several = False
        self.loads: Any = None
        self.has_updated = self.partial_epoch = self.has_failed = False
        self.batches_before = 0

    def look_again(self, callbacks: Sequence[Any]) -> None:
        """A stage begins: callbacks and methods may be others than before."""
        self.callbacks = list(callbacks)
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

    @contextmanager
    def default_dtype(self) -> Iterator[None]:
        """What steps make new tensors in: the dtype of ``64-true`` and the like."""
        wanted = _DTYPES.get(str(self.trainer.given["precision"]))
        before = torch.get_default_dtype()
        if wanted is not None:
            torch.set_default_dtype(wanted)
        try:
            yield
        finally:
            if wanted is not None:
                torch.set_default_dtype(before)

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
    def batches_per_epoch(self) -> int | None:
        """Batches of this rank in an epoch; None where that is unknown."""
        steps, accumulate = self.ours.steps_per_epoch, self.accumulate
        if steps is None or accumulate == 1:
            return None if steps is None else int(steps)
        found = arguments.batches(self.ours._fit.feed.data, self.trainer.limit_train_batches)
        most = int(steps) * accumulate
        if found is None:
            return most
        mine = -(-found // self.ours.ranks.data_world_size)
        return mine if most - accumulate < mine <= most else most

    @property
    def is_last_batch(self) -> bool:
        """Whether the step under way is the last of its epoch, where that can be known."""
        fit = self.ours._fit
        return fit is not None and bool(fit.feed.ended)

    @property
    def total_steps(self) -> float:
        """Optimizer steps of the whole fit; infinite where that is unknown."""
        total = self.ours.total_steps
        return math.inf if total is None or total >= FOREVER else int(total)

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

    def begin_evaluation(self, stage: str) -> None:
        """Values are those of an evaluation from here on."""
        self.stage_name, self._evaluation_store = stage, self.adapter._logger.current

    def end_evaluation(self) -> None:
        """They are those of training again."""
        self.stage_name, self._evaluation_store = "train", None

    # -- what steps say ------------------------------------------------------------------------

    def count_update(self) -> None:
        """The weights were changed, and our loop has not counted the step yet."""
        if self.adapter.automatic_optimization:
            self.has_updated = True
        else:
            self.manual_steps += 1

    def cancel_step(self) -> None:
        """``on_train_batch_start`` returned -1: the epoch ends, and this step is none."""
        self.cancel(1)
        self.ours.loop.end_epoch()

    def cancel(self, steps: int) -> None:
        """So many steps of our loop are none of Lightning's."""
        self.cancelled += steps
        limits = self.ours._run.limits
        if limits.max_steps is not None:
            limits.max_steps += steps
