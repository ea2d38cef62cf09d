"""Lightning's profilers: they time what you name; the loop itself is profiled by torch."""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ....callbacks import Profiler as OurProfiler
from ..translation.refusals import refuse_import

__all__ = ["AdvancedProfiler", "PassThroughProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler"]


class Profiler:
    """Actions that you name are passed to ``start`` and ``stop``; subclass it for a profiler of your own.

    Source: https://lightning.ai/docs/pytorch/stable/tuning/profiler_intermediate.html

    Args:
        dirpath: Where the report is written; None: ``trainer.log_dir``.
        filename: Its name, before the stage's; None writes none.

    Example:
        >>> profiler = SimpleProfiler()
        >>> with profiler.profile("augment"):
        ...     total = sum(range(100))
        >>> profiler.summary().splitlines()[0].split()
        ['Action', 'Calls', 'Seconds', 'Mean']
    """

    def __init__(self, dirpath: str | Path | None = None, filename: str | None = None) -> None:
        self.dirpath, self.filename = dirpath, filename

    @property
    def ours(self) -> Any:
        """What ``paceline.Trainer(profile=...)`` gets."""
        return True

    def start(self, action_name: str) -> None:
        """An action begins."""

    def stop(self, action_name: str) -> None:
        """It ends."""

    def summary(self) -> str:
        """A report; "" where nothing was timed."""
        return ""

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """Inside, the action runs."""
        self.start(action_name)
        try:
            yield action_name
        finally:
            self.stop(action_name)

    def describe(self, trainer: Any, stage: str) -> None:
        """A stage is over: report what was timed, on rank 0.

        Args:
            trainer: The trainer of this package.
            stage: Its name.
        """
        found = self.summary()
        if not found or not trainer.is_global_zero:
            return
        trainer.ours.log_line(f"{type(self).__name__}, {stage}:\n{found}")
        if self.filename is not None:
            folder = Path(self.dirpath or trainer.log_dir or ".")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{stage}-{self.filename}.txt").write_text(found + "\n", "utf-8")


class PassThroughProfiler(Profiler):
    """Times nothing."""

    @property
    def ours(self) -> Any:
        return False


class SimpleProfiler(Profiler):
    """How often each action ran, and how long.

    Args:
        dirpath: Where the report is written; None: ``trainer.log_dir``.
        filename: Its name, before the stage's; None writes none.
        extended: Accepted: the report always has calls and means.

    Attributes:
        recorded_durations: Seconds of each call, by action.
    """

    def __init__(
        self, dirpath: str | Path | None = None, filename: str | None = None, extended: bool = True
    ) -> None:
        super().__init__(dirpath, filename)
        self.current_actions: dict[str, float] = {}
        self.recorded_durations: dict[str, list[float]] = defaultdict(list)

    def start(self, action_name: str) -> None:
        self.current_actions[action_name] = time.monotonic()

    def stop(self, action_name: str) -> None:
        begun = self.current_actions.pop(action_name)
        self.recorded_durations[action_name].append(time.monotonic() - begun)

    def summary(self) -> str:
        if not self.recorded_durations:
            return ""
        rows = sorted(self.recorded_durations.items(), key=lambda one: -sum(one[1]))
        lines = [f"{'Action':40} {'Calls':>8} {'Seconds':>12} {'Mean':>12}"]
        for name, found in rows:
            lines.append(f"{name:40} {len(found):8} {sum(found):12.4g} {sum(found) / len(found):12.4g}")
        return "\n".join(lines)


class AdvancedProfiler(Profiler):
    """What each action spends its time in, by ``cProfile``.

    Args:
        dirpath: Where the report is written; None: ``trainer.log_dir``.
        filename: Its name, before the stage's; None writes none.
        line_count_restriction: Rows of each action, a number or a part.
        dump_stats: Accepted.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        line_count_restriction: float = 1.0,
        dump_stats: bool = False,
    ) -> None:
        super().__init__(dirpath, filename)
        self.profiled_actions: dict[str, cProfile.Profile] = defaultdict(cProfile.Profile)
        self.line_count_restriction = line_count_restriction

    def start(self, action_name: str) -> None:
        self.profiled_actions[action_name].enable()

    def stop(self, action_name: str) -> None:
        self.profiled_actions[action_name].disable()

    def summary(self) -> str:
        parts = []
        for name, profile in self.profiled_actions.items():
            text = io.StringIO()
            pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(
                self.line_count_restriction
            )
            parts.append(f"{name}\n{text.getvalue().rstrip()}")
        return "\n".join(parts)


class PyTorchProfiler(Profiler):
    """Traces by ``torch.profiler``, in which your actions have their names.

    Args:
        dirpath: Accepted: traces are in the run folder.
        filename: Accepted.
        group_by_input_shapes: Record the shapes of inputs.
        emit_nvtx: Accepted.
        export_to_chrome: Accepted: traces are always written.
        row_limit: Accepted.
        sort_by_key: Accepted.
        record_module_names: Accepted.
        table_kwargs: Accepted.
        record_shapes: Record the shapes of inputs.
        profile_memory: Record what is allocated.
        with_stack: Record source lines.
        schedule: Accepted: steps 7 to 9 are traced.
        **accepted: Others of torch's profiler.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        group_by_input_shapes: bool = False,
        emit_nvtx: bool = False,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        record_module_names: bool = True,
        table_kwargs: dict[str, Any] | None = None,
        *,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        schedule: Any = None,
        **accepted: Any,
    ) -> None:
        super().__init__(dirpath, filename)
        self._ours = OurProfiler(
            record_shapes=bool(record_shapes or group_by_input_shapes),
            profile_memory=bool(profile_memory),
            with_stack=bool(with_stack),
        )
        self._under_way: dict[str, Any] = {}

    @property
    def ours(self) -> Any:
        return self._ours

    def start(self, action_name: str) -> None:
        self._under_way[action_name] = named = torch.profiler.record_function(action_name)
        named.__enter__()

    def stop(self, action_name: str) -> None:
        self._under_way.pop(action_name).__exit__(None, None, None)


NAMES: dict[str, type[Profiler]] = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}
"""What ``Trainer(profiler=...)`` takes as a name."""


def profiler_of(given: Any) -> Profiler:
    """A profiler for what the Trainer was given.

    Example:
        >>> type(profiler_of("simple")).__name__, type(profiler_of(None)).__name__
        ('SimpleProfiler', 'PassThroughProfiler')
    """
    if isinstance(given, Profiler):
        return given
    if not given:
        return PassThroughProfiler()
    return NAMES.get(str(given), Profiler)()


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, {"XLAProfiler": "PyTorchProfiler"})
