"""Averages of weights, under Lightning's names."""

from __future__ import annotations

from typing import Any

from torch.optim.swa_utils import SWALR

from ..... import PacelineError
from ..... import callbacks as ours
from .callback import Callback


class _Averaged(ours.WeightAverage):
    """Ours, with the rule and the formula of a ``WeightAveraging``."""

    def __init__(self, given: WeightAveraging) -> None:
        super().__init__(validate=True, name=given.state_key)
        self.given = given

    def on_step_end(self, trainer: Any, outputs: list[Any]) -> None:
        if self.given.should_update(step_idx=trainer.global_step - 1):
            self.add()

    def on_train_epoch_end(self, trainer: Any) -> None:
        if self.given.should_update(epoch_idx=trainer.epoch):
            self.add()

    def combine(self, values: list[Any], weights: list[Any]) -> None:
        several, one = self.given.multi_avg_fn, self.given.avg_fn
        if several is not None:
            several(values, weights, self.averaged)
        for value, weight in zip(values, weights, strict=True):
            if several is None:
                new = (
                    value + (weight - value) / (self.averaged + 1)
                    if one is None
                    else one(value, weight, self.averaged)
                )
                value.copy_(new)


class WeightAveraging(Callback):
    """Keeps an average of the weights: validations use it, and the module has it after the fit.

    Args:
        device: Accepted: the average is where the weights are.
        use_buffers: Accepted: buffers, such as running statistics, are not averaged.
        avg_fn: ``(average, weight, count)``: the new average; the plain mean unless given.
        multi_avg_fn: ``(averages, weights, count)``: in place.
    """

    def __init__(
        self, device: Any = None, use_buffers: bool = True, avg_fn: Any = None, multi_avg_fn: Any = None
    ) -> None:
        self.use_buffers, self.avg_fn, self.multi_avg_fn = use_buffers, avg_fn, multi_avg_fn

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether weights go into the average after a step (from 0) or an epoch; override it."""
        return step_idx is not None

    def ours(self, trainer: Any) -> list[Any]:
        if self.use_buffers:
            trainer.explain("WeightAveraging: buffers, such as running statistics, are not averaged here")
        return [_Averaged(self)]


class EMAWeightAveraging(WeightAveraging):
    """An exponential moving average of the weights.

    Args:
        device: Accepted.
        use_buffers: Accepted.
        decay: What remains of the average in an update.
        update_every_n_steps: Steps between two updates.
        update_starting_at_step: The step (from 0) from which weights go into it.
        update_starting_at_epoch: From this epoch (from 0) on the ends of epochs go into it too.
    """

    def __init__(
        self,
        device: Any = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
    ) -> None:
        from torch.optim.swa_utils import get_ema_avg_fn

        super().__init__(device, use_buffers, avg_fn=get_ema_avg_fn(decay))
        self.every, self.first_step = update_every_n_steps, update_starting_at_step
        self.first_epoch = update_starting_at_epoch

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        if step_idx is not None:
            return step_idx >= (self.first_step or 0) and step_idx % self.every == 0
        return self.first_epoch is not None and (epoch_idx or 0) >= self.first_epoch


class _BeginningsOfEpochs(ours.SWA):
    """Ours, of the weights that epochs begin with: those after the last epoch are not averaged.

    Args:
        first: The first epoch, from 0.
        epochs: The epochs of the run.
    """

    def __init__(self, first: int, epochs: int) -> None:
        super().__init__(start=f"{max(first, 1)}ep")
        self.first, self.epochs = first, epochs

    def on_fit_start(self, trainer: Any) -> None:
        super().on_fit_start(trainer)
        if not self.first and not trainer.global_step:
            self.add()

    def _has_begun(self, trainer: Any) -> bool:
        return bool(self.first <= trainer.epoch < self.epochs)


class StochasticWeightAveraging(Callback):
    """The mean of the weights of a run's last epochs, with its own learning rate.

    Args:
        swa_lrs: The learning rate of that part, one or one for each parameter group.
        swa_epoch_start: The epoch, from 1, from which weights are averaged (int), or that part of the run.
        annealing_epochs: Epochs over which the rate moves to ``swa_lrs``.
        annealing_strategy: ``"cos"`` or ``"linear"``.
        avg_fn: Another formula is not offered here; see ``WeightAveraging``.
        device: Accepted.

    Raises:
        PacelineError: for ``avg_fn``.
    """

    def __init__(
        self,
        swa_lrs: Any,
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: str = "cos",
        avg_fn: Any = None,
        device: Any = None,
    ) -> None:
        if avg_fn is not None:
            raise PacelineError(
                "StochasticWeightAveraging(avg_fn=...) is not offered here",
                code="not-offered",
                fix="WeightAveraging(avg_fn=...)",
            )
        self.swa_lrs, self._start = swa_lrs, swa_epoch_start
        self._annealing: dict[str, Any] = {
            "anneal_epochs": annealing_epochs,
            "anneal_strategy": annealing_strategy,
        }
        self._schedule: Any = None
        self._saved: dict[str, Any] = {}

    def _first_epoch(self, trainer: Any) -> int:
        """From 0; Lightning counts its argument from 1."""
        start = self._start if isinstance(self._start, int) else int(trainer.max_epochs * self._start)
        return max(start - 1, 0)

    def ours(self, trainer: Any) -> list[Any]:
        return [_BeginningsOfEpochs(self._first_epoch(trainer), trainer.max_epochs)]

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch < self._first_epoch(trainer) or self._schedule is not None:
            return
        optimizer = trainer.optimizers[0]
        several = isinstance(self.swa_lrs, (list, tuple))
        rates: Any = self.swa_lrs if several else [self.swa_lrs] * len(optimizer.param_groups)
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            group["initial_lr"] = rate
        last = trainer.max_epochs if self._annealing["anneal_strategy"] == "cos" else -1
        self._schedule = SWALR(optimizer, list(rates), **self._annealing, last_epoch=last)  # type: ignore[arg-type]  # torch takes a list too
        if self._saved:
            self._schedule.load_state_dict(self._saved)
        del trainer.session.adapter.configs[:1]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._schedule is not None:
            self._schedule.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._schedule = None

    def state_dict(self) -> dict[str, Any]:
        if self._schedule is None:
            return {}
        return {k: v for k, v in self._schedule.state_dict().items() if not callable(v)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict
