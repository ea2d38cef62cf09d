"""The part of a ``Trainer`` that writes: checkpoints, and weights for use elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torch import Tensor

from ...callbacks.hooks import HookTable
from ...errors import PacelineError
from ..ranks import Ranks
from . import format as files
from . import run_state as snapshot
from .export import export
from .writer import CheckpointWriter, Save

if TYPE_CHECKING:
    from ..faults.nonfinite import Guard
    from ..metrics.store import MetricStore
    from ..module import TrainModule
    from ..session import Session


class Saving(Ranks):
    """What a run writes of its state."""

    folder: Path | None
    hooks: HookTable
    writer: CheckpointWriter
    store: MetricStore
    train_store: MetricStore
    say: Callable[[str], None]
    guard: Guard | None

    @property
    def module(self) -> TrainModule:
        """The module of the run under way, or of the last one."""
        raise NotImplementedError

    def save_checkpoint(self, path: str | Path, weights_only: bool = False) -> None:
        """Write a checkpoint of the run under way into a new folder. To be called on all ranks.

        Args:
            weights_only: Without what a run needs to go on: for evaluation and for use elsewhere.

        Raises:
            PacelineError: when the folder exists, when it cannot be written, or no run is under way.
        """
        save = self.start_checkpoint(Path(path), weights_only=weights_only, background=False)
        if save.error is not None:
            raise save.error

    def start_checkpoint(
        self, path: Path, *, weights_only: bool, background: bool, replace: bool = False
    ) -> Save:
        """``save_checkpoint``, whose error is in what this returns.

        Args:
            background: Return when a copy of the tensors is taken; a thread writes it.
            replace: Delete the one that is there when this one is written and stands beside it.
        """
        if self.module._trainer is None:
            raise PacelineError(
                "save_checkpoint writes the run under way, and there is none",
                fix=f"the last run's checkpoints are in {self.folder}/checkpoints",
            )
        if self.store is not self.train_store:
            raise PacelineError(
                "a checkpoint cannot be written inside a validation: the run's state is not whole there",
                fix="write it in on_step_boundary, or set a flag there and write it then",
            )
        if self.guard is not None:
            self.guard.finish()  # a step whose flag is still on its way may have left its update out
        content = snapshot.capture(cast("Session", self), weights_only)
        with self.watchdog.during("save"):
            return self.writer.write(path, content, background, replace)

    def prepare_saves(self, weights_only: bool = False) -> None:
        """Have a thread touch the memory that background saves copy into, before the first one needs it.

        To be called after a step, when the optimizers have their state. On one CPU only: ranks share out
        what they write, and an accelerator's copies lie in pinned memory.
        """
        trainer = cast("Session", self)
        if trainer.world > 1 or trainer.strategy.device.type != "cpu":
            return
        module = trainer.module
        tensors = [p for _, p in module.named_parameters(remove_duplicate=False)] + list(module.buffers())
        if not weights_only:
            states = [state for o in trainer.optimization.optimizers for state in o.state.values()]
            tensors += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        self.writer.reserve(tensors)

    def export(self, folder: str | Path, submodule: str | None = None) -> Path:
        """Write the module's weights for use without paceline: ``model.safetensors`` and ``config.json``.

        Args:
            folder: Made if it is not there; files of the same names are replaced.
            submodule: Export only this part, by its dotted name; names in the file begin there.

        Raises:
            PacelineError: when there is no such submodule.
        """
        return export(cast("Session", self), Path(folder), submodule)

    def keep_checkpoints(self, pointers: dict[str, str], dropped: list[str]) -> None:
        """Bring ``checkpoints/`` up to date behind a new one. Rank 0 does.

        Args:
            pointers: Which checkpoint ``latest``, ``best`` and their like are to name.
            dropped: Those to delete, in an order that never leaves one that looks whole.
        """
        assert self.folder is not None
        if not self.is_global_zero:
            return
        folder = self.folder / "checkpoints"
        with suppress(OSError):  # they can be lost without harm
            for pointer, name in pointers.items():
                files.write_pointer(folder / pointer, name)
        for name in dropped:
            try:
                files.delete(folder / name)
            except OSError as error:
                self.say(f"warning: an older checkpoint could not be deleted: {error}")
