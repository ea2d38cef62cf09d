"""Progress: a bar on a terminal, a plain line about every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

_BAR_EVERY = 0.1
_LINE_EVERY = 10.0


class Progress(Callback):
    """Epoch, loss, the values logged with ``prog_bar=True``, samples/s, memory and time left.

    Args:
        every: Seconds between two plain lines where the output is no terminal.
    """

    def __init__(self, every: float = _LINE_EVERY) -> None:
        self.every = every
        self._bar: Any = None
        self._next = 0.0
        self._begun = (0.0, 0, 0)

    def on_fit_start(self, trainer: Trainer) -> None:
        now = time.perf_counter()
        self._begun = (now, trainer.global_step, trainer.state.samples)
        self._next = now + self.every
        if sys.stdout.isatty() and trainer.is_global_zero:
            from tqdm import tqdm

            self._next = now
            self._bar = tqdm(
                total=trainer.total_steps,
                initial=trainer.global_step,
                file=sys.stdout,
                dynamic_ncols=True,
                bar_format="{desc} {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt}{postfix}"
                if trainer.total_steps
                else "{desc} step {n_fmt}{postfix}",
            )

    def on_step_end(self, trainer: Trainer, outputs: list[Any]) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        if self._bar is not None:
            self._next = now + _BAR_EVERY
            self._draw(trainer, now)
        elif trainer.is_global_zero:
            self._next = now + self.every
            trainer.say(self._line(trainer, now))

    def on_validation_end(self, trainer: Trainer) -> None:
        if not trainer.validation_counts:
            return
        values = {k: v for k, v in trainer.metrics.items() if k.startswith("val/")}
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if text and trainer.is_global_zero:
            trainer.say(f"epoch {trainer.epoch + 1}, step {trainer.global_step}: {text}")

    def on_fit_end(self, trainer: Trainer) -> None:
        self._close(trainer)
        if trainer.is_global_zero:
            trainer.say(self._line(trainer, time.perf_counter()) + f"; ended: {trainer.stop_reason}")

    def on_teardown(self, trainer: Trainer, stage: str) -> None:
        self._close(trainer)

    def _close(self, trainer: Trainer) -> None:
        if self._bar is not None:
            self._draw(trainer, time.perf_counter())
            self._bar.close()
            self._bar = None

    def _draw(self, trainer: Trainer, now: float) -> None:
        self._bar.n = trainer.global_step
        self._bar.set_description_str(f"epoch {self._epoch(trainer)}", refresh=False)
        values = "  ".join(self._values(trainer, now))
        self._bar.set_postfix_str(values, refresh=False)
        self._bar.refresh()

    def _line(self, trainer: Trainer, now: float) -> str:
        total = f"/{trainer.total_steps}" if trainer.total_steps else ""
        head = f"epoch {self._epoch(trainer)}, step {trainer.global_step}{total}"
        return ", ".join([head, *self._values(trainer, now)])

    @staticmethod
    def _epoch(trainer: Trainer) -> str:
        number = trainer.epoch + 1
        if trainer.max_epochs is None:
            return str(number)
        return f"{min(number, trainer.max_epochs)}/{trainer.max_epochs}"

    def _values(self, trainer: Trainer, now: float) -> list[str]:
        shown = ["train/loss", *trainer.shown_metrics]
        values = [
            f"{name.removeprefix('train/')} {trainer.metrics[name]:.4g}"
            for name in dict.fromkeys(shown)
            if name in trainer.metrics
        ]
        begun, step, samples = self._begun
        seconds = max(now - begun, 1e-9)
        values.append(f"{_short((trainer.state.samples - samples) / seconds)} samples/s")
        values.append(_memory(trainer.strategy.device))
        done = trainer.global_step - step
        if trainer.total_steps and done:
            left = (trainer.total_steps - trainer.global_step) * seconds / done
            values.append(f"ETA {_clock(left)}")
        return values


def _short(number: float) -> str:
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}G"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _memory(device: torch.device) -> str:
    if device.type == "cpu":
        used = _process().memory_info().rss
    else:
        used = torch.accelerator.memory_allocated(device)
    return f"{used / 2**30:.2g}GB"


@cache
def _process() -> Any:
    import psutil

    return psutil.Process()
