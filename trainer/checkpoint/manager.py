"""The part of a ``Trainer`` that writes: checkpoints, and weights for use elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...callbacks.hooks import HookTable
from ...errors import PacelineError
from ..ranks import Ranks
from . import format as files
from . import run_state as snapshot
from .export import export
from .writer import CheckpointWriter, Content, Save

if TYPE_CHECKING:
    from ..faults.nonfinite import Guard
    from ..metrics.store import MetricStore
    from ..module import TrainModule
    from ..session import Session

# Between a step's end and the next update these hooks could change weights.
_BETWEEN = ("on_train_epoch_start", "on_step_start", "on_before_optimizer_step")


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
        if (
            background
            and self.module.automatic_optimization
            and not any(map(self.hooks.__getitem__, _BETWEEN))
        ):
            content.steady = self._steady(content)
        with self.watchdog.during("save"):
            return self.writer.write(path, content, background, replace)

    def _steady(self, content: Content) -> set[str]:
        """What nobody changes before the next update: trained weights, and moments."""
        trained = {f"model.{n}" for n, p in self.module.named_parameters() if p.requires_grad}
        for name, part in self.module.named_modules():
            if getattr(part, "max_norm", None) is not None:  # an embedding's forward rescales its weight
                trained.discard(f"model.{name}.weight".replace("..", "."))
        return {name for name in content.tensors if name in trained or name.startswith("optim.")}

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
