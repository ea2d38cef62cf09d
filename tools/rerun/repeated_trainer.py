"""The base of Trainers for a script that is run again for one of its fits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from ...trainer.config.call_arguments import refuse_arguments
from ...trainer.run.run import Run
from ...trainer.trainer import Trainer

_fits = count(1)


class RepeatedTrainer(Trainer):
    """A ``Trainer`` that evaluates nothing: of all the script does, one fit alone counts."""

    trial_class = Trainer  # trials are run, for the script that uses what they find

    @property
    @abstractmethod
    def wanted_fit(self) -> int:
        """Which ``fit`` of the script is to be repeated, from 1."""

    @abstractmethod
    def repeat(self, module: Any, data: tuple[Any, Any, Any], allow: str | Sequence[str]) -> None:
        """Do what the script was started for.

        Args:
            module: As ``fit`` takes it.
            data: The training and validation dataloaders and the DataModule, likewise.
            allow: Likewise.
        """

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
        """Repeat the fit that is wanted and end the script; a run that does nothing where it is another."""
        refuse_arguments("fit", unknown)
        if next(_fits) != self.wanted_fit:
            return Run(None)
        self.repeat(module, (train_dataloader, val_dataloader, datamodule), allow)
        raise SystemExit(0)

    def validate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """No values."""
        return {}

    def test(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """No values."""
        return {}

    def predict(self, *arguments: Any, **more: Any) -> list[Any]:
        """No outputs."""
        return []
