"""The Trainer of a script that ``paceline check`` runs: its first fit is looked at closely."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from ...common.json_text import json_text
from ...trainer.run.run import Run
from ...trainer.trainer import Trainer
from ..check.examine import Report, examine, short_and_alone
from .check_request import requested


class CheckTrainer(Trainer):
    """A ``Trainer`` on one device that writes nothing but what is found.

    The script continues for some seconds after its first fit: later fits and tests are watched, too.
    """

    trial_class = Trainer
    _report: ClassVar[Report | None] = None

    def __init__(self, **arguments: Any) -> None:
        folder = Path(requested().out).parent / "runs"
        super().__init__(**short_and_alone(arguments, requested().seconds, folder))

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
        """Train from the beginning, and write what is found."""
        data = train_dataloader, val_dataloader, datamodule
        run = super().fit(module, *data, **unknown)
        if CheckTrainer._report is None:
            CheckTrainer._report = examine(self, module, data)
            later = threading.Timer(requested().later_seconds, os._exit, (0,))
            later.daemon = True
            later.start()
        self._write()
        return run

    def validate(self, module: Any = None, dataloader: Any = None, weights: Any = None, **more: Any) -> Any:
        """Validate the weights as they are: none were written."""
        return super().validate(module, dataloader, **more)

    def test(self, module: Any = None, dataloader: Any = None, weights: Any = None, **more: Any) -> Any:
        """Test the weights as they are, and write what is found."""
        values = super().test(module, dataloader, **more)
        self._write()
        return values

    def predict(self, module: Any = None, dataloader: Any = None, *written: Any, **more: Any) -> list[Any]:
        """No outputs."""
        return []

    def _write(self) -> None:
        """Write the report, with what the callback has found since."""
        report = CheckTrainer._report
        if report is not None:
            report.take(self.callbacks)
            out = Path(requested().out)
            staging = out.with_suffix(".part")
            staging.write_text(json_text(asdict(report)), encoding="utf-8")
            staging.replace(out)
