"""The base of Trainers for a script that is run again for one of its fits."""

from __future__ import annotations

from typing import Any

from .trainer import Trainer


class RepeatedTrainer(Trainer):
    """A ``Trainer`` that evaluates nothing: of all the script does, its fit alone counts."""

    trial_class = Trainer  # trials are run, for the script that uses what they find

    def validate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """No values."""
        return {}

    def test(self, *arguments: Any, **more: Any) -> dict[str, float]:
        """No values."""
        return {}

    def predict(self, *arguments: Any, **more: Any) -> list[Any]:
        """No outputs."""
        return []
