"""Lightning's small models for reports of problems; those that load data from the network are not here."""

from __future__ import annotations

from typing import Any

from ...translation.refusals import refuse_import
from .boring_classes import BoringDataModule, BoringModel, DemoModel

__all__ = ["BoringDataModule", "BoringModel", "DemoModel"]

_OWN = "a model and data of your own"
_NAMES = "LightningLSTM LightningTransformer SequenceSampler SimpleLSTM Transformer WikiText2"
_HERE = dict.fromkeys(_NAMES.split(), _OWN)


def __getattr__(name: str) -> Any:
    return refuse_import(__name__, name, _HERE)
