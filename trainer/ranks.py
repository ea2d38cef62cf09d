"""What a rank does with the others: values and waits to share, and how all agree to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import PacelineError

if TYPE_CHECKING:
    from ..strategies import Strategy
    from .faults.stop import Agreement
    from .faults.watchdog import Watchdog
    from .state import TrainState

T = TypeVar("T")


class Ranks:
    """The part of a ``Trainer`` that speaks to the other ranks. On one device all of it is immediate.

    Attributes:
        stop_asked: Why the run is to stop, as all ranks agreed; None while nobody asked.
        stop_wanted, stop_signal: Why this rank asked for it, and the signal's number if it was one.
        agreed_seconds: Rank 0's clock at the last agreement.
        agreement: How several ranks come to agree; None on one device, outside of a run.
    """

    strategy: Strategy
    state: TrainState
    clock: Callable[[], float]
    agreed_seconds: float = 0.0
    stop_asked: str | None = None
    stop_wanted: str | None = None
    stop_signal: int | None = None
    agreement: Agreement | None = None
    watchdog: Watchdog
    ranks_in_turn: int = 1

    @property
    def rank(self) -> int:
        """This process' number among all, from 0."""
        return self.strategy.environment.rank

    def rank_of(self, micro_batch: int) -> int:
        """The rank whose micro-batch it is, of the step under way: this one, except in a replay."""
        return self.rank if self.ranks_in_turn == 1 else micro_batch % self.ranks_in_turn

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""
        return self.strategy.environment.is_global_zero

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self.strategy.environment.world

    def barrier(self) -> None:
        """Wait for all ranks."""
        if not self.strategy.environment.starts:
            self.strategy.barrier()

    def broadcast(self, value: T, source: int = 0) -> T:
        """The value that rank ``source`` has, on every rank. Any object that can be pickled."""
        if self.strategy.environment.starts:
            return value
        found: T = self.strategy.broadcast(value, source)
        return found

    @contextmanager
    def main_process_first(self, per_node: bool = False) -> Iterator[None]:
        """What is inside runs on rank 0 while the others wait, then on the others.

        Args:
            per_node: On the first rank of each machine first; for files that machines do not share.

        Raises:
            PacelineError: on the others, when what is inside failed on the first.
        """
        environment = self.strategy.environment
        if environment.starts or self.world == 1:
            yield
            return
        if environment.local_rank == 0 if per_node else environment.is_global_zero:
            failed: str | None = "it was interrupted"
            try:
                yield
                failed = None
            except Exception as error:
                failed = f"{type(error).__name__}: {error}"
                raise
            finally:
                self.strategy.gather([failed])
            return
        told = [(rank, what) for rank, (what,) in enumerate(self.strategy.gather([None])) if what]
        if told:
            raise PacelineError(f"rank {told[0][0]} failed in what it does first: {told[0][1]}")
        yield

    def on_rank_zero(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on rank 0, on every rank; it is called there alone.

        Raises:
            PacelineError: on every rank, where it raised on rank 0.
        """
        if self.world == 1:
            return function()
        result: Any = None
        error: Exception | None = None
        if self.is_global_zero:
            try:
                result = function()
            except Exception as raised:
                error = raised
        result, told = self.broadcast((result, str(error) if error is not None else None))
        if error is not None:
            raise error
        if told is not None:
            raise PacelineError(told)
        found: T = result
        return found

    # -- stopping ------------------------------------------------------------------------------

    def agreed_clock(self) -> float:
        """``clock``, the same on all ranks: rank 0's, as of the last agreement."""
        return self.clock() if self.world == 1 else max(self.agreed_seconds, self.state.elapsed)

    def stop(self, why: str, signal: int | None = None) -> None:
        """Ask the run to end at a step boundary all ranks agree on; the first reason given is kept."""
        if self.stop_wanted is None:
            self.stop_wanted = why
        if signal is not None:
            self.stop_signal = signal
        if self.world == 1:
            self.stop_asked = self.stop_wanted

    @property
    def interrupted(self) -> bool:
        """Whether a signal is the reason to stop, as all ranks agreed: there may be little time."""
        return self.stop_asked is not None and self.stop_signal is not None

    def agree(self) -> None:
        """See that all ranks know of every wish to stop."""
        if self.agreement is not None:
            self.agreement.now()

    def pass_boundary(self) -> bool:
        """Behind a batch of an evaluation. Whether it is to be given up."""
        self.watchdog.beats += 1
        if self.agreement is not None:
            self.agreement.at_boundary()
        return self.interrupted

    def agree_to_stop(self, wishes: list[tuple[str | None, int | None]]) -> None:
        """Stop, for the reason of the first rank that has one."""
        rank, (why, _) = next((r, w) for r, w in enumerate(wishes) if w[0] is not None)
        alone = [w[0] for w in wishes].count(None) > 0
        self.stop_asked = f"{why} on rank {rank}" if alone else why
        self.stop_wanted = why
        self.stop_signal = next((signal for _, signal in wishes if signal is not None), None)

    def forget_stop(self) -> None:
        """A new run begins: nobody has asked it to stop."""
        self.stop_asked = self.stop_wanted = self.stop_signal = None
