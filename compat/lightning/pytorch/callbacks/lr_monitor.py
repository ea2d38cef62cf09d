"""``LearningRateMonitor`` with Lightning's arguments and names of values."""

from __future__ import annotations

from typing import Any

import torch

from ..... import callbacks as ours
from ...translation.hooks import overrides
from ..loggers.logger import Logger
from .callback import Callback
from .overrides import refuse_overrides


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
        refuse_overrides(self, LearningRateMonitor)
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
        """Keep the rates, show them in ``callback_metrics``, and hand them to loggers of the user's own."""
        every: dict[str, float] = {}
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
                every |= shown
        for logger in trainer.loggers if every and trainer.is_global_zero else ():
            if overrides(logger, "log_metrics", Logger):
                logger.log_metrics(every, trainer.ours.global_step)

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
