"""How a run ends: every reason to stop in one property, agreed on by all ranks at a step boundary.

Nothing that one rank alone knows decides anything. The ranks share one word every n steps: whether any
wants to stop, and rank 0's clock. It is started at one boundary and read at the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ...strategies.ranks.collectives import Collectives
from ..state import Clock, Limits, TrainState

_SECONDS = 0.5
_MOST_STEPS = 1 << 20


class StopController:
    """Whether a run is to end, and why.

    Args:
        ranks: Carry the word between them.
        state: The counters of the run.
        limits: When the run ends.
        clock: The seconds of training.

    Attributes:
        epoch_over: Whether the epoch is to end after the step under way; every rank sets it alike.
        requested: Why it is to end, as all ranks agreed; limits may still have it wait. None: nobody asked.
    """

    def __init__(self, ranks: Collectives, state: TrainState, limits: Limits, clock: Clock) -> None:
        self._ranks, self._state, self._limits, self._clock = ranks, state, limits, clock
        self._agreed_seconds = 0.0
        self._agreement: _Agreement | None = None
        self.begin_stage(shared=False)

    def begin_stage(self, shared: bool = True) -> None:
        """A fit, validation, test or prediction begins: nobody has asked it to stop.

        Args:
            shared: The ranks are there to agree with, where there are several.
        """
        self.requested: str | None = None
        self._wanted: str | None = None
        self._signal: int | None = None
        self._is_over = self.epoch_over = False
        self._counted = self._state.global_step  # steps that the agreement knows of
        several = shared and self._ranks.world_size > 1
        self._agreement = _Agreement(self._ranks, self._word, self._take) if several else None

    def end_stage(self) -> None:
        """There is nobody to agree with any longer."""
        self._agreement = None

    # -- the reasons ---------------------------------------------------------------------------

    @property
    def reason(self) -> str | None:
        """Why the run ends here; None while it continues."""
        if self.requested is not None and not self._waits:
            return self.requested
        if self._state.validating:  # an interrupted validation is repeated first
            return None
        return self._limits.reached(self._state, self)

    @property
    def done(self) -> bool:
        """Whether there is any reason to stop."""
        return self.reason is not None

    @property
    def asked(self) -> bool:
        """Whether somebody asked for the stop, as all ranks agreed; False where a limit ends the run."""
        return self.requested is not None and not self._waits

    @property
    def _waits(self) -> bool:
        return self._signal is None and self._limits.below_minimum(self._state)

    @property
    def signal(self) -> int | None:
        """The number of the signal that asked for the stop, on any rank."""
        return self._signal

    @property
    def interrupted(self) -> bool:
        """Whether a signal is the reason to stop, as all ranks agreed: there may be little time."""
        return self.requested is not None and self._signal is not None

    def request(self, why: str, signal: int | None = None) -> None:
        """Ask the run to end at a step boundary all ranks agree on; the first reason given is kept.

        It only sets attributes, so that a signal handler may call it.
        """
        if self._is_over:
            return
        if self._wanted is None:
            self._wanted = why
        if signal is not None:
            self._signal = signal
        if self._ranks.world_size == 1:
            self.requested = self._wanted

    @property
    def request_agreed_on(self) -> tuple[str | None, int | None]:
        """The reason that all ranks agreed on and its signal: for ``end_as``."""
        return self.requested, self._signal

    def end_as(self, why: str | None, signal: int | None) -> None:
        """Take the end of the same run in other processes, whose counters are here already."""
        self.requested, self._signal = why, signal

    def agree_on_signals(self) -> None:
        """The last agreement: on a signal that any rank received, also after the run had ended.

        To be called on all ranks. Requests after it change nothing.
        """
        if self._agreement is not None:
            received = self._ranks.all_gather(self._signal)
            self._signal = next((number for number in received if number is not None), None)
            self._is_over = True

    # -- agreeing ------------------------------------------------------------------------------

    def seconds(self) -> float:
        """The seconds of training, the same on all ranks: rank 0's, as of the last agreement."""
        if self._ranks.world_size == 1:
            return self._clock.seconds()
        return max(self._agreed_seconds, self._state.elapsed)

    def agree(self) -> None:
        """See that all ranks know of every request to stop. To be called on all ranks."""
        self._counted = self._state.global_step
        if self._agreement is not None:
            self._agreement.now()

    def at_boundary(self, batches: int = 0) -> None:
        """To be called after steps, and before each batch of an evaluation, on all ranks.

        Args:
            batches: So many batches of an evaluation begin here; steps are counted by this method.
        """
        steps, self._counted = self._state.global_step - self._counted, self._state.global_step
        if self._agreement is not None:
            self._agreement.at_boundary(steps + batches)

    @property
    def next_boundary(self) -> float:
        """In how many boundaries ``at_boundary`` is to be called next, at the latest."""
        return math.inf if self._agreement is None else self._agreement.next_boundary

    def _word(self) -> tuple[bool, int]:
        is_zero = self._ranks.is_global_zero
        return self._wanted is not None, int(self._clock.seconds() * 1e6) if is_zero else 0

    def _take(self, wanted: bool, microseconds: int) -> None:
        self._agreed_seconds = microseconds / 1e6
        if wanted and self.requested is None:
            self._agree_to_stop(self._ranks.all_gather((self._wanted, self._signal)))

    def _agree_to_stop(self, requests: list[tuple[str | None, int | None]]) -> None:
        """Stop, for the reason of the first rank that has one."""
        rank, (why, _) = next((r, w) for r, w in enumerate(requests) if w[0] is not None)
        alone = [w[0] for w in requests].count(None) > 0
        self.requested = f"{why} on rank {rank}" if alone else why
        self._wanted = why
        self._signal = next((signal for _, signal in requests if signal is not None), None)


class _Agreement:
    """Shares a word of all ranks every n boundaries.

    A boundary follows each step, and each batch of a validation. How many lie between two words is part of
    the word: about half a second.
    """

    def __init__(
        self, ranks: Collectives, word: Callable[[], tuple[bool, int]], take: Callable[[bool, int], None]
    ) -> None:
        self._ranks, self._own_word, self._take = ranks, word, take
        self._pending: Callable[[], Tensor] | None = None
        self._count, self._next = 0, 1
        self._sent_at = (time.perf_counter(), 0)

    def at_boundary(self, boundaries: int) -> None:
        """So many boundaries have passed, on all ranks; a word is due where they are ``next_boundary``."""
        self._count += boundaries
        if self._count < self._next:
            return
        if self._pending is None:
            self._pending = self._ranks.all_reduce_async(self._word(), "max")
            self._next = self._count + 1
        else:
            self._next = self._count + self._read()

    @property
    def next_boundary(self) -> int:
        """In how many boundaries the next word is sent or read."""
        return self._next - self._count

    def now(self) -> None:
        """Agree here and wait for it: where a validation or an epoch has ended anyway."""
        if self._pending is not None:
            self._read()
        self._pending = self._ranks.all_reduce_async(self._word(), "max")
        self._read()
        self._next = self._count + 1  # what follows may take another time per boundary

    def _word(self) -> Tensor:
        now, (before, count_before) = time.perf_counter(), self._sent_at
        self._sent_at = (now, self._count)
        seconds = max(now - before, 1e-6) / max(self._count - count_before, 1)
        every = 1 if self._count == count_before else min(max(int(_SECONDS / seconds), 1), _MOST_STEPS)
        wanted, microseconds = self._own_word()
        return torch.tensor([wanted, every, microseconds], dtype=torch.int64)

    def _read(self) -> int:
        assert self._pending is not None
        wanted, every, microseconds = self._pending().tolist()
        self._pending = None
        self._take(bool(wanted), microseconds)
        return int(every)
