"""Callbacks that are ours under Lightning's names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch

from ..... import PacelineError
from ..... import callbacks as ours
from .....durations import Duration
from .callback import Callback

_NEVER_CALLED = {
    "ProgressBar": (
        "get_metrics",
        "init_train_tqdm",
        "init_validation_tqdm",
        "init_test_tqdm",
        "init_sanity_tqdm",
        "configure_columns",
        "enable",
        "disable",
    ),
    "ModelSummary": ("summarize",),
}


def _refuse_overrides(callback: Any, kind: str) -> None:
    """Refuse a subclass that changes what nobody calls here.

    Raises:
        PacelineError: naming the methods.
    """
    written = [name for name in _NEVER_CALLED[kind] if hasattr(type(callback), name)]
    if written:
        raise PacelineError(
            f"{type(callback).__name__} overrides {', '.join(written)}, which would never be called",
            fix="a callback with hooks, or a subclass of paceline.callbacks.Progress for a bar of your own",
        )


class TQDMProgressBar(Callback):
    """The progress bar; its look is ours.

    Args:
        refresh_rate: 0 shows none.
        process_position: Accepted.
        leave: Accepted.
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        self.refresh_rate = refresh_rate

    def ours(self, trainer: Any) -> list[Any]:
        _refuse_overrides(self, "ProgressBar")
        return [ours.Progress()] if self.refresh_rate else []


class RichProgressBar(Callback):
    """The progress bar; its look is ours.

    Args:
        refresh_rate: 0 shows none.
        leave: Accepted.
        theme: Accepted.
        console_kwargs: Accepted.
    """

    def __init__(
        self, refresh_rate: int = 1, leave: bool = False, theme: Any = None, console_kwargs: Any = None
    ) -> None:
        self.refresh_rate = refresh_rate

    def ours(self, trainer: Any) -> list[Any]:
        _refuse_overrides(self, "ProgressBar")
        return [ours.Progress()] if self.refresh_rate else []


class ModelSummary(Callback):
    """A table of the module's direct parts.

    Args:
        max_depth: 0 prints none; deeper parts are not shown.
        **summarize_kwargs: Accepted.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        self.max_depth = max_depth

    def ours(self, trainer: Any) -> list[Any]:
        _refuse_overrides(self, "ModelSummary")
        return [ours.ModelSummary()] if self.max_depth else []


class RichModelSummary(ModelSummary):
    """The same."""


class LearningRateMonitor(Callback):
    """Writes learning rates.

    Args:
        logging_interval: ``"step"`` writes a row in each step; else log points have them anyway.
        log_momentum: Also momenta.
        log_weight_decay: Also weight decays.
    """

    def __init__(
        self,
        logging_interval: str | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
    ) -> None:
        self.logging_interval = logging_interval
        self._options = {"momentum": log_momentum, "weight_decay": log_weight_decay}

        self.lrs: dict[str, list[float]] = {}

    def ours(self, trainer: Any) -> list[Any]:
        every = 1 if self.logging_interval == "step" else trainer.log_every_n_steps
        return [ours.LearningRateMonitor(max(every, 1), **self._options)]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.lrs = {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.logging_interval != "epoch" and (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            self._note(trainer, "step" if self.logging_interval is None else "any")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self.logging_interval != "step":
            self._note(trainer, "epoch" if self.logging_interval is None else "any")

    def _note(self, trainer: Any, interval: str) -> None:
        """Keep the rates, and show them in ``callback_metrics``."""
        for optimizer, name, of_interval in self._named(trainer):
            if interval not in ("any", of_interval) and of_interval != "any":
                continue
            groups = optimizer.param_groups
            for number, group in enumerate(groups, 1):
                key = f"{name}/{group.get('name', f'pg{number}')}" if len(groups) > 1 else name
                self.lrs.setdefault(key, []).append(group["lr"])
                shown = {key: group["lr"]}
                if self._options["momentum"]:
                    shown[f"{key}-momentum"] = group.get("momentum", group.get("betas", [0])[0])
                if self._options["weight_decay"]:
                    shown[f"{key}-weight_decay"] = group.get("weight_decay", 0)
                trainer.session.values.others |= {n: torch.tensor(float(v)) for n, v in shown.items()}

    @staticmethod
    def _named(trainer: Any) -> list[tuple[Any, str, str]]:
        """Each optimizer with Lightning's name for its rate, and when that changes."""
        found: list[tuple[Any, str, str]] = []
        counts: dict[type, int] = {}
        of_schedules = [(c.scheduler.optimizer, c.name, c.interval) for c in trainer.lr_scheduler_configs]
        known = [id(optimizer) for optimizer, _, _ in of_schedules]
        others = [(one, None, "any") for one in trainer.optimizers if id(one) not in known]
        for optimizer, name, interval in [*of_schedules, *others]:
            kind = type(optimizer)
            counts[kind] = counts.get(kind, 0) + (name is None)
            suffix = f"-{counts[kind] - 1}" if counts[kind] > 1 else ""
            found.append((optimizer, (name or f"lr-{kind.__name__}") + suffix, interval))
        return found


class DeviceStatsMonitor(Callback):
    """Writes memory and load of devices and machines.

    Args:
        cpu_stats: False: of the device alone.
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self.cpu_stats = cpu_stats

    def ours(self, trainer: Any) -> list[Any]:
        return [ours.DeviceMonitor(max(trainer.log_every_n_steps, 1), host=self.cpu_stats is not False)]


class GradientAccumulationScheduler(Callback):
    """Accumulates another number of batches from certain epochs on.

    Args:
        scheduling: By epoch, from 0, the batches in an optimizer step.
    """

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        self.scheduling = dict(scheduling)

    def ours(self, trainer: Any) -> list[Any]:
        return [ours.GradientAccumulationScheduler(self.scheduling)]


class _TimedStop(ours.Timer):
    """Ours, which also ends the run."""

    limit: float | None = None

    def on_step_boundary(self, trainer: Any) -> None:
        super().on_step_boundary(trainer)
        if self.limit is not None and trainer.seconds() >= self.limit:
            trainer.stop(f"Timer: {self.limit:g} s of training")


class Timer(Callback):
    """Ends the run after a time of training, and says how long its parts took.

    Args:
        duration: ``"00:12:00:00"`` (days, hours, minutes, seconds), a timedelta, or its arguments.
        interval: Accepted: the time is looked at after each step.
        verbose: Accepted.
    """

    def __init__(self, duration: Any = None, interval: str = "step", verbose: bool = True) -> None:
        duration = timedelta(**duration) if isinstance(duration, Mapping) else duration
        self._limit = None if duration is None else float(Duration.parse(duration).amount)
        self._made = _TimedStop()
        self._made.limit = self._limit

    def ours(self, trainer: Any) -> list[Any]:
        return [self._made]

    def time_elapsed(self, stage: str = "train") -> float:
        """Seconds in ``"train"`` or ``"validate"``."""
        return self._made.seconds("validation" if str(stage).startswith("val") else "train")

    def time_remaining(self, stage: str = "train") -> float | None:
        """Seconds until the end; None without a limit."""
        return None if self._limit is None else max(self._limit - self.time_elapsed(stage), 0.0)
