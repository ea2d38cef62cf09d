"""The Trainer of a script that ``paceline replay`` runs again: of all its runs only one step is taken."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from .config.peer_names import refuse_unknown
from .debug.replay import alone, replay, requested
from .repeated_trainer import RepeatedTrainer
from .run.run import Run
from .trainer import Trainer

_fits = count(1)


class ReplayTrainer(RepeatedTrainer):
    """A ``Trainer`` on one device that writes nothing. Runs but the one that is replayed do nothing."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**alone(arguments, requested().accelerator))

    def fit(
        self,
        module: Any = None,
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        datamodule: Any = None,
        resume: str | Path | None = None,
        allow: str | Sequence[str] = (),
        decay: int | str | None = None,
        **unknown: Any,
    ) -> Run:
        """Replay the step, print it and end the script; a run that does nothing where it is another fit."""
        refuse_unknown("fit", unknown)
        request = requested()
        if next(_fits) != request.fit:
            return Run(None)
        data = (train_dataloader, val_dataloader, datamodule)
        print(replay(Trainer, self.settings, module, data, request, allow), flush=True)
        raise SystemExit(0)
