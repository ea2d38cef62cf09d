"""``BasePredictionWriter``: predictions written by the user's code, batch by batch or all together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from ..... import PacelineError
from .callback import Callback


class WriteInterval(StrEnum):
    """When predictions are written."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    @property
    def on_batch(self) -> bool:
        """Whether after each batch."""
        return self in (self.BATCH, self.BATCH_AND_EPOCH)

    @property
    def on_epoch(self) -> bool:
        """Whether at the end."""
        return self in (self.EPOCH, self.BATCH_AND_EPOCH)


_INTERVALS = tuple(one.value for one in WriteInterval)


class BasePredictionWriter(Callback):
    """Subclass it: ``write_on_batch_end`` or ``write_on_epoch_end`` gets this rank's predictions.

    Args:
        write_interval: ``"batch"``, ``"epoch"`` or ``"batch_and_epoch"``.

    Raises:
        PacelineError: for another interval.

    Source: https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.callbacks.BasePredictionWriter.html
    """

    def __init__(self, write_interval: str = "batch") -> None:
        if write_interval not in _INTERVALS:
            raise PacelineError(
                "BasePredictionWriter: write_interval is not known",
                code="unknown-choice",
                got=repr(write_interval),
                allowed=", ".join(map(repr, _INTERVALS)),
            )
        self.interval = WriteInterval(write_interval)
        self._kept: dict[int, tuple[list[Any], list[Any]]] = {}

    def write_on_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write what ``predict_step`` returned for a batch; ``batch_indices`` are its samples'."""
        raise NotImplementedError

    def write_on_epoch_end(
        self, trainer: Any, pl_module: Any, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write all: one for each batch, or a list for each of several dataloaders."""
        raise NotImplementedError

    def on_predict_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Nothing is kept yet."""
        self._kept.clear()

    def on_predict_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write the batch, or keep it for the end."""
        indices = list(trainer.ours.loop.sample_indices)
        if self.interval.on_epoch:
            predictions, all_indices = self._kept.setdefault(dataloader_idx, ([], []))
            predictions.append(outputs)
            all_indices.append(indices)
        if self.interval.on_batch:
            self.write_on_batch_end(trainer, pl_module, outputs, indices, batch, batch_idx, dataloader_idx)

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what was kept."""
        if self.interval.on_epoch:
            parts = [self._kept[number] for number in sorted(self._kept)]
            predictions = [one for one, _ in parts]
            given = predictions[0] if len(predictions) == 1 else predictions
            self.write_on_epoch_end(trainer, pl_module, given, [indices for _, indices in parts])
            self._kept.clear()
