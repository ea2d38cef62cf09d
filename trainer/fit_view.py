"""What hooks and modules may do inside a fit, and only there: losses, updates, epochs, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..callbacks.trainer_view import StepFacts
from ..errors import PacelineError
from .utils.paths import as_path
from .view import RunView

if TYPE_CHECKING:
    from .checkpoint.manager import CheckpointManager
    from .loops.fit_context import FitContext
    from .loops.manual_optimizer import ManualOptimization


class FitView(RunView):
    """The members of ``paceline.callbacks.TrainerView`` that belong to a fit."""

    @property
    def manual_optimization(self) -> ManualOptimization:
        """What ``self.optimizers()`` and ``self.manual_backward(loss)`` of a module use.

        Raises:
            PacelineError: outside of a fit.
        """
        return self._fit_for("optimizers() and manual_backward()").manual

    def optimizer_settings(self, *settings: str) -> dict[str, float]:
        """Settings of all parameter groups: ``lr/AdamW``, or ``lr/AdamW/group-1`` where there are several.

        They are those of the last update, where a schedule that goes by steps has changed them since.

        Args:
            *settings: ``"lr"``, ``"weight_decay"``, ``"momentum"`` (or the first of ``betas``).

        Example:
            >>> class Printed(Callback):
            ...     def on_fit_start(self, trainer):
            ...         print(trainer.optimizer_settings("lr", "momentum"))
            >>> run = Trainer(max_steps=1, callbacks=Printed(), loggers=False).fit(Net(), train_loader)
            {'lr/SGD': 0.1, 'momentum/SGD': 0.0}
        """
        optimization = self._fit_for("optimizer_settings").optimization
        return {name: value for one in settings for name, value in optimization.settings(one).items()}

    def evaluation_of(self, dataloader: Any, name: str) -> Callable[[], dict[str, float] | None]:
        """A pass of ``validation_step`` over further data, for ``on_step_boundary``. On all ranks.

        Args:
            dataloader: The data; its workers live until the fit ends.
            name: Values are published as ``val/<name>/...``.

        Returns:
            Runs the pass, on all ranks: the values, or None where a signal interrupted it.

        Example:
            >>> class Once(Callback):
            ...     def on_fit_start(self, trainer):
            ...         self.evaluate = trainer.evaluation_of(val_loader, "other")
            ...     def on_step_boundary(self, trainer):
            ...         self.found = self.evaluate()
            >>> once = Once()
            >>> run = Trainer(max_steps=1, callbacks=once, loggers=False).fit(Net(), train_loader)
            >>> sorted(once.found)
            ['val/other/loss']
        """
        from .loops.evaluation_setup import evaluation_of

        return evaluation_of(self._fit_for("evaluation_of"), dataloader, name)

    def step_facts(self) -> StepFacts:
        """What is known of the step under way on this rank; nothing is computed or waited for.

        Example:
            >>> class Printed(Callback):
            ...     def on_step_end(self, trainer):
            ...         facts = trainer.step_facts()
            ...         print(facts.step, list(facts.samples), len(facts.losses))
            >>> run = Trainer(max_steps=1, callbacks=Printed(), loggers=False).fit(Net(), train_loader)
            1 [...] 1
        """
        place = self._run.place
        samples = self._fit_for("step_facts").feed.step_samples()
        return StepFacts(self._run.state.global_step, samples, list(place.losses), place.gradient_norm)

    def step_loss(self) -> float:
        """The loss of the step under way, of all its micro-batches and ranks, by their weights.

        On all ranks, in ``on_before_optimizer_step``; one all-reduce, and a device is waited for.

        Example:
            >>> class Kept(Callback):
            ...     def on_before_optimizer_step(self, trainer, optimizer):
            ...         self.loss = trainer.step_loss()
            >>> kept = Kept()
            >>> run = Trainer(max_steps=1, callbacks=kept, loggers=False).fit(Net(), train_loader)
            >>> kept.loss > 0
            True
        """
        pairs = [(float(loss), float(weight)) for loss, weight in self._run.place.losses]
        sums = [sum(loss * weight for loss, weight in pairs), sum(weight for _, weight in pairs)]
        loss, weight = self.strategy.all_reduce(torch.tensor(sums, dtype=torch.float64)).tolist()
        return loss / weight if weight else math.nan

    def skip_update(self) -> None:
        """Let the step under way end without an update, as if gradients were zero and nothing moved.

        On all ranks, in ``on_before_optimizer_step``, with automatic optimization; schedules do not step.

        Example:
            >>> class Frozen(Callback):
            ...     def on_before_optimizer_step(self, trainer, optimizer):
            ...         trainer.skip_update()
            >>> run = Trainer(max_steps=1, callbacks=Frozen(), loggers=False).fit(Net(), train_loader)
        """
        self._run.place.skips_update = True

    def end_epoch(self) -> None:
        """End the epoch after the step under way, like any other: hooks, means, validation, schedules.

        To be called on all ranks, in ``training_step`` or ``on_step_end`` of the same step.

        Example:
            >>> class Short(Callback):
            ...     def on_step_end(self, trainer, outputs):
            ...         trainer.end_epoch()
            >>> short = Trainer(max_epochs=2, callbacks=Short(), run_dir=None)
            >>> run = short.fit(Net(), train_loader)
            >>> short.global_step
            2
        """
        self._run.stop.epoch_over = True

    def request_validation(self) -> None:
        """Validate after the step under way, besides what ``validate_every`` says.

        To be called on all ranks, in ``training_step`` or ``on_step_end`` of the same step, by a callback
        with ``requests_validation = True``. With ``validate_every=None`` there are no other validations.

        Example:
            >>> class AtThird(Callback):
            ...     requests_validation = True
            ...     def on_step_end(self, trainer):
            ...         if trainer.global_step == 3:
            ...             trainer.request_validation()
            ...     def on_validation_end(self, trainer):
            ...         self.step = trainer.global_step
            >>> third = AtThird()
            >>> trainer = Trainer(callbacks=third, validate_every=None, sanity_val_batches=0, run_dir=None)
            >>> run = trainer.fit(Net(), train_loader, val_loader)
            >>> third.step
            3
        """
        self._run.place.validates = True

    def roll_back(self, path: str | Path) -> None:
        """Take weights, optimizer states and averages of weights back from a checkpoint of this run.

        Counters, schedules, learning rates and the position in the data stay: the batches since then are
        not trained on again. On all ranks, in ``on_step_boundary``.

        Args:
            path: The checkpoint; not one of weights only.

        Raises:
            PacelineError: outside of a fit, and for a checkpoint that is damaged or of another model.

        Example:
            >>> class Retreat(Callback):
            ...     def on_step_boundary(self, trainer):
            ...         if trainer.global_step == 3:
            ...             trainer.roll_back(trainer.latest)
            >>> often = Checkpoint("1st")
            >>> trainer = Trainer(max_steps=4, callbacks=[Retreat(), often], loggers=False)
            >>> run = trainer.fit(Net(), train_loader)
        """
        self._fit_for("roll_back").checkpoints.roll_back(as_path(path, "roll_back"))

    def forward_training_data(self) -> None:
        """Run ``training_step`` on an epoch of the training data, without gradients and without logging.

        For what a module counts in its forward, such as the statistics of batch norms. On all ranks, in
        ``on_train_epoch_end`` or ``on_fit_end``.

        Raises:
            PacelineError: outside of a fit, and for data that keeps its own position.

        Example:
            >>> class Recounted(Callback):
            ...     def on_fit_end(self, trainer):
            ...         trainer.forward_training_data()
            >>> run = Trainer(max_steps=1, callbacks=Recounted(), loggers=False).fit(Net(), train_loader)
        """
        from .loops.forward_pass import forward_training_data

        forward_training_data(self._fit_for("forward_training_data"))

    @property
    def checkpoints(self) -> CheckpointManager:
        """What the ``Checkpoint`` callback writes through.

        Raises:
            PacelineError: outside of a fit.
        """
        return self._fit_for("checkpoints").checkpoints

    def save_checkpoint(self, path: str | Path, weights_only: bool = False) -> None:
        """Write a checkpoint of the current fit into a new folder. To be called on all ranks.

        Args:
            path: The folder to be written; its parent is made if it does not exist.
            weights_only: Without what resuming needs: for evaluation and for use elsewhere.

        Raises:
            PacelineError: when the folder exists, when it cannot be written, or no fit is running.

        Example:
            >>> class AtTheEnd(Callback):
            ...     def on_fit_end(self, trainer):
            ...         trainer.save_checkpoint("last", weights_only=True)
            >>> run = Trainer(max_steps=1, callbacks=AtTheEnd(), loggers=False).fit(Net(), train_loader)
            >>> module = Net.load_from_checkpoint("last")
        """
        if self._stage != "fit":
            raise PacelineError(
                "save_checkpoint writes the current fit, and there is none",
                fix="call it in a hook; afterwards run.latest of the Run that fit returned is the newest "
                "checkpoint, and export(folder) writes the weights",
            )
        self._fit_for("save_checkpoint").checkpoints.save_to(as_path(path, "save_checkpoint"), weights_only)

    def _fit_for(self, what: str) -> FitContext:
        if self._fit is None:
            raise PacelineError(f"{what}: no fit is running", fix="use it in a step or a hook of fit")
        return self._fit
