"""What a Trainer does to find out why a run went as it did: replay a step, compare two layouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PacelineError
from ..strategies.launch.job_notes import uncaught_errors_shortened
from .fit_view import FitView
from .on_ranks import on_ranks
from .utils.paths import as_path

if TYPE_CHECKING:
    from .config.arguments import TrainerArguments
    from .debug.invariance import Invariance
    from .debug.replay import Replay
    from .module import TrainModule


class Diagnosis(FitView):
    """Repeats steps of a run, and changes nothing of it."""

    @property
    def settings(self) -> TrainerArguments:
        """The validated arguments."""
        return self._run.settings

    @uncaught_errors_shortened()
    def replay(
        self,
        module: TrainModule,
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        datamodule: Any = None,
        *,
        step: int,
        run: str | Path | None = None,
        accelerator: str = "auto",
        debug: bool = False,
    ) -> Replay:
        """Run a step of a run again, alone, with its samples and random draws, and without its update.

        One device computes for all the ranks there were, one after another. Nothing is written.

        Args:
            module: Takes the newest checkpoint before the step; the steps between are repeated.
            train_dataloader: The training data of the run, as ``fit`` took it.
            val_dataloader: The validation data, likewise.
            datamodule: The ``DataModule``, likewise.
            step: Which one, from 1.
            run: The run's folder; this trainer's last run unless given.
            accelerator: Where to compute.
            debug: Enter ``pdb`` at the step's ``training_step``, and after an error.

        Raises:
            PacelineError: for a step the run has not reached, and whatever the step raises.

        Example:
            >>> each = Checkpoint("1st", keep=None)
            >>> trainer = Trainer(max_epochs=1, callbacks=each, progress=False, loggers=False)
            >>> run = trainer.fit(Net(), train_loader)
            >>> len(trainer.replay(Net(), train_loader, step=3).losses)  # one of each micro-batch
            1
        """
        from .debug import replay

        folder = self.folder if run is None else run
        if folder is None:
            raise PacelineError("replay: there is no run yet", fix="run='runs/<name>/<n>'")
        path = str(as_path(folder, "replay"))
        request = replay.ReplayRequest(path, step, accelerator=accelerator, debug=debug)
        data = (train_dataloader, val_dataloader, datamodule)
        return replay.replay(type(self), self.settings, module, data, request)

    @uncaught_errors_shortened()
    @on_ranks
    def check_invariance(
        self,
        module: TrainModule,
        train_dataloader: Any = None,
        datamodule: Any = None,
        *,
        steps: int = 3,
        tolerance: float | None = None,
    ) -> Invariance:
        """Train copies of ``module`` for a few steps at two layouts; find the first tensor that differs.

        The second has micro-batches of half the size, on one device. Dropout is off; nothing is written.

        Args:
            module: Stays as it is.
            train_dataloader: The training data, as ``fit`` takes it.
            datamodule: A ``DataModule``, as ``fit`` takes it.
            steps: Optimizer steps at each layout.
            tolerance: Largest relative difference; None is 1e-4, 1e-9 in precision "64", 5e-2 in 16 bits.

        Returns:
            True where all is the same; as a string, what differs, by how much, and what to do about it.

        Raises:
            PacelineError: for data whose batches cannot be cut.

        Example:
            >>> bool(trainer.check_invariance(Net(), train_loader, steps=1))
            True
        """
        from .data.sources import as_datamodule
        from .debug import invariance

        data = as_datamodule(train_dataloader, datamodule)
        return invariance.check(self, module, data, steps, tolerance)
