"""What hooks and modules may ask of the loop under way: ``trainer.loop``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..callbacks.trainer_view import StepFacts

if TYPE_CHECKING:
    from .loops.manual_optimizer import ManualOptimization


class LoopControls:
    """The step, the epoch and the validation under way; ``paceline.callbacks.LoopView`` promises it.

    Args:
        trainer: The Trainer, whose runs follow each other.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def is_between_steps(self) -> bool:
        """Whether the state is a finished step's, which a run can resume from; for ``on_exception``."""
        return bool(self._trainer.stage == "fit" and self._trainer._run.step.between_steps)

    @property
    def sample_indices(self) -> list[Any]:
        """The dataset indices of this rank's batch in a validation, test or prediction; empty elsewhere.

        Example:
            >>> class Printed(Callback):
            ...     def on_predict_step_end(self, trainer, output, batch, batch_idx):
            ...         print(batch_idx, trainer.loop.sample_indices)
            >>> predicts = Trainer(callbacks=Printed(), progress=False, run_dir=None)
            >>> outputs = predicts.predict(Net(), val_loader)
            0 [0, 1, 2, 3]
            1 [4, 5, 6, 7]
            2 [8, 9, 10, 11]
            3 [12, 13, 14, 15]
        """
        return list(self._trainer._run.step.indices())

    @property
    def is_fit_validation(self) -> bool:
        """Whether the current validation is part of ``fit``: no sanity check, no call of ``validate``."""
        return bool(self._trainer.stage == "fit" and self._trainer._run.logger.publishes)

    @property
    def data(self) -> dict[str, Any]:
        """The data of the fit as it was given, by ``"train"`` and ``"val"``, or ``"val/NAME"`` of several.

        Example:
            >>> class Printed(Callback):
            ...     def on_fit_start(self, trainer):
            ...         print({name: len(loader.dataset) for name, loader in trainer.loop.data.items()})
            >>> printed = Trainer(max_steps=1, callbacks=Printed(), progress=False, run_dir=None)
            >>> run = printed.fit(Net(), train_loader, val_loader)
            {'train': 16, 'val': 16}
        """
        fit = self._trainer._fit_for("loop.data")
        feeds = {} if fit.validation is None else fit.validation.feeds
        validation = {f"val/{name}".rstrip("/"): feed.data for name, feed in feeds.items()}
        return {"train": fit.feed.data} | validation

    @property
    def schedules(self) -> list[Any]:
        """The learning rate schedules: each has ``scheduler``, ``interval``, ``frequency``, ``monitor``.

        Example:
            >>> class Printed(Callback):
            ...     def on_fit_start(self, trainer):
            ...         print([(one.interval, one.frequency) for one in trainer.loop.schedules])
            >>> printed = Trainer(max_steps=1, callbacks=Printed(), progress=False, run_dir=None)
            >>> run = printed.fit(Net(), train_loader)
            []
        """
        return list(self._trainer._fit_for("loop.schedules").optimization.schedules)

    @property
    def progress_bar_names(self) -> list[str]:
        """Full names of the values logged with ``prog_bar=True``."""
        stores = [self._trainer._run.logger.train]
        if self._trainer._fit is not None and self._trainer._fit.validation is not None:
            stores.append(self._trainer._fit.validation.store)
        return [name for store in stores for name in store.shown]

    @property
    def manual_optimization(self) -> ManualOptimization:
        """What ``self.optimizers()`` and ``self.manual_backward(loss)`` of a module use.

        Raises:
            PacelineError: outside of a fit.
        """
        manual: ManualOptimization = self._trainer._fit_for("optimizers() and manual_backward()").manual
        return manual

    def optimizer_settings(self, *settings: str) -> dict[str, float]:
        """Settings of all parameter groups: ``lr/AdamW``, or ``lr/AdamW/group-1`` where there are several.

        They are those of the last update, where a schedule that goes by steps has changed them since.

        Args:
            *settings: ``"lr"``, ``"weight_decay"``, ``"momentum"`` (or the first of ``betas``).

        Example:
            >>> class Printed(Callback):
            ...     def on_fit_start(self, trainer):
            ...         print(trainer.loop.optimizer_settings("lr", "momentum"))
            >>> run = Trainer(max_steps=1, callbacks=Printed(), loggers=False).fit(Net(), train_loader)
            {'lr/SGD': 0.1, 'momentum/SGD': 0.0}
        """
        optimization = self._trainer._fit_for("loop.optimizer_settings").optimization
        return {name: value for one in settings for name, value in optimization.settings(one).items()}

    def step_facts(self) -> StepFacts:
        """What is known of the step under way on this rank; nothing is computed or waited for.

        Example:
            >>> class Printed(Callback):
            ...     def on_step_end(self, trainer):
            ...         facts = trainer.loop.step_facts()
            ...         print(facts.step, list(facts.samples), len(facts.losses))
            >>> run = Trainer(max_steps=1, callbacks=Printed(), loggers=False).fit(Net(), train_loader)
            1 [...] 1
        """
        step = self._trainer._run.step
        samples = self._trainer._fit_for("loop.step_facts").feed.step_samples()
        number = self._trainer._run.state.global_step
        return StepFacts(number, samples, list(step.losses), step.gradient_norm, list(step.sizes))

    def step_loss(self) -> float:
        """The loss of the step under way, of all its micro-batches and ranks, by their weights.

        On all ranks, in ``on_before_optimizer_step``; one all-reduce, and a device is waited for.

        Example:
            >>> class Kept(Callback):
            ...     def on_before_optimizer_step(self, trainer, optimizer):
            ...         self.loss = trainer.loop.step_loss()
            >>> kept = Kept()
            >>> run = Trainer(max_steps=1, callbacks=kept, loggers=False).fit(Net(), train_loader)
            >>> kept.loss > 0
            True
        """
        pairs = [(float(loss), float(weight)) for loss, weight in self._trainer._run.step.losses]
        sums = [sum(loss * weight for loss, weight in pairs), sum(weight for _, weight in pairs)]
        loss, weight = self._trainer.ranks.all_reduce(torch.tensor(sums, dtype=torch.float64)).tolist()
        return loss / weight if weight else math.nan

    def skip_update(self) -> None:
        """Let the step under way end without an update, as if gradients were zero and nothing moved.

        On all ranks, in ``on_before_optimizer_step``, with automatic optimization; schedules do not step.

        Example:
            >>> class Frozen(Callback):
            ...     def on_before_optimizer_step(self, trainer, optimizer):
            ...         trainer.loop.skip_update()
            >>> run = Trainer(max_steps=1, callbacks=Frozen(), loggers=False).fit(Net(), train_loader)
        """
        self._trainer._run.step.skips_update = True

    def end_epoch(self) -> None:
        """End the epoch after the step under way, like any other: hooks, means, validation, schedules.

        To be called on all ranks, in ``training_step`` or ``on_step_end`` of the same step.

        Example:
            >>> class Short(Callback):
            ...     def on_step_end(self, trainer, outputs):
            ...         trainer.loop.end_epoch()
            >>> short = Trainer(max_epochs=2, callbacks=Short(), run_dir=None)
            >>> run = short.fit(Net(), train_loader)
            >>> short.global_step
            2
        """
        self._trainer._run.stop.epoch_over = True

    def request_validation(self) -> None:
        """Validate after the step under way, besides what ``validate_every`` says.

        To be called on all ranks, in ``training_step`` or ``on_step_end`` of the same step, by a callback
        with ``requests_validation = True``. With ``validate_every=None`` there are no other validations.
        In ``on_fit_start`` it requests the sanity pass of a run that is resumed, which has none else.

        Example:
            >>> class AtThird(Callback):
            ...     requests_validation = True
            ...     def on_step_end(self, trainer):
            ...         if trainer.global_step == 3:
            ...             trainer.loop.request_validation()
            ...     def on_validation_end(self, trainer):
            ...         self.step = trainer.global_step
            >>> third = AtThird()
            >>> trainer = Trainer(callbacks=third, validate_every=None, sanity_val_batches=0, run_dir=None)
            >>> run = trainer.fit(Net(), train_loader, val_loader)
            >>> third.step
            3
        """
        self._trainer._run.step.validates = True

    def forward_training_data(self) -> None:
        """Run ``training_step`` on an epoch of the training data, without gradients and without logging.

        For what a module counts in its forward, such as the statistics of batch norms. On all ranks, in
        ``on_train_epoch_end`` or ``on_fit_end``.

        Raises:
            PacelineError: outside of a fit, and for data that keeps its own position.

        Example:
            >>> class Recounted(Callback):
            ...     def on_fit_end(self, trainer):
            ...         trainer.loop.forward_training_data()
            >>> run = Trainer(max_steps=1, callbacks=Recounted(), loggers=False).fit(Net(), train_loader)
        """
        from .loops.forward_pass import forward_training_data

        forward_training_data(self._trainer._fit_for("loop.forward_training_data"))

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
            ...         self.evaluate = trainer.loop.evaluation_of(val_loader, "other")
            ...     def on_step_boundary(self, trainer):
            ...         self.found = self.evaluate()
            >>> once = Once()
            >>> run = Trainer(max_steps=1, callbacks=once, loggers=False).fit(Net(), train_loader)
            >>> sorted(once.found)
            ['val/other/loss']
        """
        from .loops.setup.evaluation_setup import evaluation_of

        return evaluation_of(self._trainer._fit_for("loop.evaluation_of"), dataloader, name)
