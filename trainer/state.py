"""Where a run is: one small value, and all that counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(slots=True)
class TrainState:
    """The counters of a run. A checkpoint writes exactly these.

    Attributes:
        global_step: Optimizer steps done over the whole run.
        epoch: The epoch under way, from 0; after the last one, the number of epochs done.
        position: How far the epoch's order is consumed by finished steps, in samples.
        epoch_start: The value of ``global_step`` when the epoch began.
        batch_idx: Micro-batches of this epoch that this rank has done.
        samples: Samples trained on over the whole run, all ranks.
        elapsed: Seconds of training, earlier sessions of a resumed run included.
        skipped_steps: Updates left out because a loss was not finite.
        weight_reference: The power of two that returned weights are divided by; None until needed.
        validated: Whether there was a validation since the last end of an epoch.
        validated_step: The step of the last validation; -1 before the first.
        validating: What the validation under way follows, ``"step"`` or ``"epoch"``; "" outside of one. It
            is in a checkpoint where a signal came into it: the run that goes on does it again.
        global_batch: Samples in a full step, as the run began; 0 where it is not known.
    """

    global_step: int = 0
    epoch: int = 0
    position: int = 0
    epoch_start: int = 0
    batch_idx: int = 0
    samples: int = 0
    elapsed: float = 0.0
    skipped_steps: int = 0
    weight_reference: float | None = None
    validated: bool = False
    validated_step: int = -1
    validating: str = ""
    global_batch: int = 0

    def begin_epoch(self) -> None:
        """Nothing of the epoch under way is done."""
        self.epoch_start = self.global_step
        self.position = self.batch_idx = 0

    def state_dict(self) -> dict[str, Any]:
        """All counters, as plain data."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave; a counter it lacks keeps its default."""
        for field in fields(self):
            if field.name in state:
                setattr(self, field.name, state[field.name])
