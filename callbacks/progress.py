"""Progress: a bar on a terminal, a display in a notebook, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ..common.argument_checks import AMOUNT, check_arguments
from .base import Callback
from .evaluator import Evaluator
from .notebook_display import NotebookDisplay

if TYPE_CHECKING:
    from .trainer_view import TrainerView

_BAR_EVERY = 0.1
_DISPLAY_EVERY = 0.5
_LINE_EVERY = 10.0
_BAR_WIDTH = 8


class Progress(Callback):
    """Epoch, loss, the values logged with ``prog_bar=True``, samples/s, memory and time left.

    A bar on a terminal, one display with a table of validations in a notebook, plain lines elsewhere.

    Args:
        every: Seconds between two plain lines, where the output is neither.

    Example:
        >>> trainer = Trainer(callbacks=Progress(every=60))
    """

    def __init__(self, every: float = _LINE_EVERY) -> None:
        check_arguments("Progress", every=(every, AMOUNT))
        self.every = every
        self._bar: Any = None
        self._notebook: NotebookDisplay | None = None
        self._draws = False
        self._next = 0.0
        self._begun = (0.0, 0, 0)

    def on_fit_start(self, trainer: TrainerView) -> None:
        now = time.perf_counter()
        self._begun = (now, trainer.global_step, trainer.counters.samples)
        here = trainer.is_global_zero
        self._notebook = NotebookDisplay() if here and NotebookDisplay.is_possible() else None
        self._draws = here and (self._notebook is not None or sys.stdout.isatty())
        self._next = now if self._draws else now + self.every

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        if self._draws:
            self._draw_if_due(trainer, now)
        elif trainer.is_global_zero:
            self._next = now + self.every
            trainer.log_line(self._line(trainer, now))

    def _draw_if_due(self, trainer: TrainerView, now: float) -> None:
        if now >= self._next:
            self._next = now + (_BAR_EVERY if self._notebook is None else _DISPLAY_EVERY)
            self._draw(trainer, now)

    def on_validation_end(self, trainer: TrainerView) -> None:
        if not trainer.loop.is_fit_validation:
            return
        others = tuple(f"val/{c.name}/" for c in trainer.callbacks if isinstance(c, Evaluator))
        metrics = trainer.metrics.items()
        values = {k: v for k, v in metrics if k.startswith("val/") and not k.startswith(others)}
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if not text or not trainer.is_global_zero:
            return
        place = f"epoch {trainer.epoch + 1}, step {trainer.global_step}"
        trainer.log_line(f"{place}: {text}", console=self._notebook is None)
        if self._notebook is not None:
            self._notebook.add_row(place, values)
            self._draw_if_due(trainer, time.perf_counter())

    def on_fit_end(self, trainer: TrainerView) -> None:
        end, shows = f"; ended: {trainer.stop_reason}", self._notebook is not None
        self._close(trainer, end * shows)
        if trainer.is_global_zero:
            line = self._line(trainer, time.perf_counter()) + end
            trainer.log_line(line, console=not shows)

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._close(trainer)

    def _close(self, trainer: TrainerView, end: str = "") -> None:
        if self._bar is not None or self._notebook is not None:
            self._draw(trainer, time.perf_counter(), end)
        if self._bar is not None:
            self._bar.close()
        self._bar = self._notebook = None

    def _draw(self, trainer: TrainerView, now: float, end: str = "") -> None:
        total = trainer.total_steps
        if self._notebook is not None:
            self._notebook.show(trainer.global_step, total, self._line(trainer, now) + end)
            return
        if self._bar is None:
            from tqdm import tqdm

            bar = f"{{bar:{_BAR_WIDTH}}}| " if total else ""
            self._bar = tqdm(total=total, file=sys.stdout, bar_format=bar + "{desc}")
        self._bar.n = trainer.global_step
        space = shutil.get_terminal_size().columns - 1 - (_BAR_WIDTH + 2 if total else 0)
        self._bar.set_description_str(self._fitted(trainer, now, space))

    def _fitted(self, trainer: TrainerView, now: float, space: int) -> str:
        """One line: of the chosen values as many as there is room for."""
        step = (
            f"{trainer.global_step}/{trainer.total_steps}"
            if trainer.total_steps
            else str(trainer.global_step)
        )
        values = self._values(trainer)
        ends = [text.replace(" samples", "") for text in self._speed(trainer, now)]
        while True:
            text = " ".join([f"ep {self._epoch(trainer)}", step, *values, *ends])
            if len(text) <= space or not values:
                return text[:space]
            values.pop()

    def _line(self, trainer: TrainerView, now: float) -> str:
        total = f"/{trainer.total_steps}" if trainer.total_steps else ""
        head = f"epoch {self._epoch(trainer)}, step {trainer.global_step}{total}"
        return ", ".join([head, *self._values(trainer), *self._speed(trainer, now)])

    @staticmethod
    def _epoch(trainer: TrainerView) -> str:
        number = trainer.epoch + (trainer.counters.samples_in_epoch > 0 or trainer.epoch == 0)
        if trainer.max_epochs is None:
            return str(number)
        return f"{min(number, trainer.max_epochs)}/{trainer.max_epochs}"

    def values(self, trainer: TrainerView) -> dict[str, Any]:
        """The values to show, by name; override it to choose others.

        Args:
            trainer: The run's state.

        Example:
            >>> class Short(Progress):
            ...     def values(self, trainer):
            ...         return {"loss": trainer.metrics["train/loss"]}
            >>> trainer = Trainer(callbacks=Short())
        """
        names = dict.fromkeys(["train/loss", *trainer.loop.progress_bar_names])
        return {n.removeprefix("train/"): trainer.metrics[n] for n in names if n in trainer.metrics}

    def _values(self, trainer: TrainerView) -> list[str]:
        return [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.values(trainer).items()
        ]

    def _speed(self, trainer: TrainerView, now: float) -> list[str]:
        begun, step, samples = self._begun
        seconds = max(now - begun, 1e-9)
        rate = _short((trainer.counters.samples - samples) / seconds)
        texts = [f"{rate} samples/s", _memory(trainer.strategy.device)]
        done, total = trainer.global_step - step, trainer.total_steps
        if total and done and trainer.global_step < total:
            texts.append(f"ETA {clock_text((total - trainer.global_step) * seconds / done)}")
        return texts


def _short(number: float) -> str:
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}G"


def clock_text(seconds: float) -> str:
    """Seconds as ``3:12`` or ``1:03:12``."""
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
