"""How ranks agree to stop: one word every n steps, read a step late; nothing rank-local decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .session import Session

_SECONDS = 0.5
_MOST_STEPS = 1 << 20


class Agreement:
    """Brings the ranks' wishes to stop, and rank 0's clock, to all ranks at the same step.

    The word is started at one step boundary and read at the next, so that nobody waits for it. How many
    steps lie between two words is part of the word: about half a second.
    """

    def __init__(self, trainer: Session) -> None:
        self._trainer, self._strategy = trainer, trainer.strategy
        self._waiting: Callable[[], Tensor] | None = None
        self._asked_at = (time.perf_counter(), trainer.global_step)
        self.next_step = trainer.global_step + 1

    def at_boundary(self) -> None:
        """To be called at the boundary of ``next_step``."""
        step = self._trainer.global_step
        if self._waiting is None:
            self._waiting = self._strategy.reduce_later(self._word(step), "max")
            self.next_step = step + 1
        else:
            self.next_step = step + self._read()

    def now(self) -> None:
        """Agree here and wait for it: where a validation or an epoch has ended anyway."""
        if self._waiting is not None:
            self._read()
        self._waiting = self._strategy.reduce_later(self._word(self._trainer.global_step), "max")
        self.next_step = self._trainer.global_step + self._read()

    def _word(self, step: int) -> Tensor:
        now, (before, step_before) = time.perf_counter(), self._asked_at
        self._asked_at = (now, step)
        a_step = max(now - before, 1e-6) / max(step - step_before, 1)
        every = 1 if step == step_before else min(max(int(_SECONDS / a_step), 1), _MOST_STEPS)
        trainer = self._trainer
        clock = int(trainer.clock() * 1e6) if trainer.is_global_zero else 0
        return torch.tensor([trainer.stop_wanted is not None, every, clock], dtype=torch.int64)

    def _read(self) -> int:
        assert self._waiting is not None
        asked, every, clock = self._waiting().tolist()
        self._waiting = None
        trainer = self._trainer
        trainer.agreed_seconds = clock / 1e6
        if asked and trainer.stop_asked is None:
            trainer.agree_to_stop(self._strategy.gather((trainer.stop_wanted, trainer.stop_signal)))
        return int(every)
