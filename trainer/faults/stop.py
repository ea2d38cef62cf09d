"""How ranks agree to stop: one word every n steps, read a step late; nothing rank-local decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..session import Session

_SECONDS = 0.5
_MOST_STEPS = 1 << 20


class Agreement:
    """Brings the ranks' wishes to stop, and rank 0's clock, to all ranks at the same boundary.

    A boundary lies behind each step, and behind each batch of a validation. The word is started at one and
    read at the next, so that nobody waits for it. How many lie between two words is part of the word: about
    half a second.
    """

    def __init__(self, trainer: Session) -> None:
        self._trainer, self._strategy = trainer, trainer.strategy
        self._waiting: Callable[[], Tensor] | None = None
        self._count, self._next = 0, 1
        self._asked_at = (time.perf_counter(), 0)

    def at_boundary(self) -> None:
        """To be called at each boundary, on all ranks."""
        self._count += 1
        if self._count < self._next:
            return
        if self._waiting is None:
            self._waiting = self._strategy.reduce_later(self._word(), "max")
            self._next = self._count + 1
        else:
            self._next = self._count + self._read()

    def now(self) -> None:
        """Agree here and wait for it: where a validation or an epoch has ended anyway."""
        if self._waiting is not None:
            self._read()
        self._waiting = self._strategy.reduce_later(self._word(), "max")
        self._read()
        self._next = self._count + 1  # what comes now may go at another pace

    def _word(self) -> Tensor:
        now, (before, count_before) = time.perf_counter(), self._asked_at
        self._asked_at = (now, self._count)
        a_step = max(now - before, 1e-6) / max(self._count - count_before, 1)
        every = 1 if self._count == count_before else min(max(int(_SECONDS / a_step), 1), _MOST_STEPS)
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
