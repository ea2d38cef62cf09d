"""Traces of a few steps, and the operations that take most of their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...common.argument_checks import COUNT, COUNT_OR_ZERO, SWITCH, check_arguments
from ..base import Callback

if TYPE_CHECKING:
    import torch

    from ..trainer_view import TrainerView

_ROWS = 10


class Profiler(Callback):
    """Profiles some steps with ``torch.profiler``; the steps before and after them cost nothing.

    Of each window of ``active`` steps every rank writes a Chrome trace (chrome://tracing, Perfetto) to the
    run folder, ``profile/rank0-step00000009.json.gz``, named after the last step in it. Rank 0 logs the ten
    operations with the most time in themselves: of the device, on an accelerator, else of the host. A run
    that ends within a window has a trace of its steps until there. ``Trainer(profile=True)`` adds this with
    its defaults. Without a run folder only the operations are logged.

    Args:
        wait: Steps before each window, counted from the start of this fit.
        warmup: Steps before each window that are profiled and dropped, after those: the first ones are
            slow.
        active: Steps in a window.
        repeat: Windows.
        record_shapes: Record the shapes of inputs in the trace.
        profile_memory: Record what is allocated, in the trace and with the operations.
        with_stack: Record the source line of each operation in the trace.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> trainer = Trainer(profile=Profiler(wait=1, warmup=1, active=2), progress=False)
        >>> run = trainer.fit(Net(), train_loader)
        >>> [path.name for path in (trainer.folder / "profile").iterdir()]
        ['rank0-step00000004.json.gz']
    """

    def __init__(
        self,
        wait: int = 5,
        warmup: int = 1,
        active: int = 3,
        repeat: int = 1,
        *,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
    ) -> None:
        check_arguments(
            "Profiler",
            wait=(wait, COUNT_OR_ZERO),
            warmup=(warmup, COUNT_OR_ZERO),
            active=(active, COUNT),
            repeat=(repeat, COUNT),
            record_shapes=(record_shapes, SWITCH),
            profile_memory=(profile_memory, SWITCH),
            with_stack=(with_stack, SWITCH),
        )
        self.wait, self.warmup, self.active, self.repeat = wait, warmup, active, repeat
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
        }
        self._profile: torch.profiler.profile | None = None
        self._steps = self._windows = 0

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._steps = self._windows = 0

    def on_step_start(self, trainer: TrainerView, batches: list[Any]) -> None:
        if self._steps == self.wait and self._profile is None and self._windows < self.repeat:
            from torch.profiler import profile, schedule

            self._profile = profile(
                schedule=schedule(wait=0, warmup=self.warmup, active=self.active, repeat=1),
                on_trace_ready=lambda made: self._write(trainer, made),
                **self._options,
            )
            self._profile.__enter__()

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        self._steps += 1
        if self._profile is not None:
            self._profile.step()
            if self._steps == self.wait + self.warmup + self.active:
                self._end()

    def on_fit_end(self, trainer: TrainerView) -> None:
        self._end()

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._end()

    def _end(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(None, None, None)
            self._steps, self._windows = 0, self._windows + 1

    def _write(self, trainer: TrainerView, made: torch.profiler.profile) -> None:
        if self._steps <= self.wait + self.warmup:  # the run ended before one was recorded
            return
        where = ""
        if trainer.folder is not None:
            folder = trainer.folder / "profile"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"rank{trainer.rank}-step{trainer.global_step:08d}.json.gz"
            made.export_chrome_trace(str(path))
            where = f"; traces are in {folder}"
        if trainer.is_global_zero:
            kind = "cpu" if trainer.strategy.device.type == "cpu" else "device"
            title = f"profile up to step {trainer.global_step}, by self {kind} time{where}"
            trainer.log_line("\n".join([title, *self._table(made, kind)]))

    def _table(self, made: torch.profiler.profile, kind: str) -> list[str]:
        """The operations that take most time in themselves, a line each."""
        time, memory = f"self_{kind}_time_total", f"self_{kind}_memory_usage"
        # The mark of a step has the time in which no operation ran.
        found = [event for event in made.key_averages() if not event.key.startswith("ProfilerStep")]
        found.sort(key=lambda event: getattr(event, time), reverse=True)
        whole = max(sum(getattr(event, time) for event in found), 1e-9)
        remembers = self._options["profile_memory"]
        lines = [" share    self ms    calls" + "     self MB" * remembers + "  operation"]
        for event in found[:_ROWS]:
            spent = getattr(event, time)
            line = f"{spent / whole:6.1%} {spent / 1e3:10.2f} {event.count:8}"
            line += f" {getattr(event, memory) / 1e6:11.2f}" if remembers else ""
            lines.append(f"{line}  {event.key}")
        return lines
