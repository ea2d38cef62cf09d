"""Logged values of a run: where they are kept, the latest ones, and the rows that loggers write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import PacelineError, nearest
from ...strategies import Strategy
from ..state import Clock, TrainState
from .row_writer import RowWriter
from .store import MetricStore

SECONDS = 10.0


class NoLogging(MetricStore):
    """A store that refuses values, where they would not be published.

    Args:
        place: The hook or stage, for the error.
        log_line: As a store takes it.
        strategy: As a store takes it.
    """

    def __init__(self, place: str, log_line: Callable[[str], None], strategy: Strategy) -> None:
        super().__init__("", log_line, strategy)
        self._place = place

    def log(self, name: str, *args: Any, **options: Any) -> None:
        """Refuse the value.

        Raises:
            PacelineError: always.
        """
        raise PacelineError(
            f"nothing can be logged in {self._place}",
            got=f"log({name!r})",
            allowed="every step, and the hooks from on_fit_start to on_fit_end, from "
            "on_validation_start to on_validation_end, and so on",
        )


class MetricLogger:
    """Takes values, reduces them at log points, and passes rows to the writers on rank 0.

    Args:
        strategy: Reduces over the ranks.
        state, clock: Where the run is, for the rows.
        writers: Each passes rows to a logger: ``step``, ``epoch``, ``time``, ``samples``, and values by
            full name.
        log_line: Takes a line for the log.

    Attributes:
        train: What the training steps log.
        current: What takes the values that are logged now: ``train``, or the store of an evaluation.
        latest: The latest reduced values by full name, plain floats, the same on every rank.
        publishes: False during the sanity pass, of which nothing is kept.
        is_evaluating: Whether values belong to an evaluation at the moment.

    Example:
        >>> from paceline.strategies import find_environment, make_precision, make_strategy
        >>> strategy = make_strategy("single")
        >>> strategy.attach(find_environment("cpu", 1), make_precision("32"))
        >>> state, rows = TrainState(global_step=3), []
        >>> writer = RowWriter(rows.append, "Rows", print, background=False)
        >>> logger = MetricLogger(strategy, state, Clock(state), [writer], print)
        >>> logger.log("accuracy", 0.5)
        >>> logger.publish(logger.train.close_window())
        >>> rows
        [{'step': 3, 'epoch': 0, 'time': 0.0, 'samples': 0, 'train/accuracy': 0.5}]
    """

    def __init__(
        self,
        strategy: Strategy,
        state: TrainState,
        clock: Clock,
        writers: Iterable[RowWriter],
        log_line: Callable[[str], None],
    ) -> None:
        self._state, self._clock = state, clock
        self._writers = list(writers) if strategy.environment.is_global_zero else []
        self._log_line = log_line
        self._strategy = strategy
        self.train = self.current = MetricStore("train", log_line, strategy)
        self.latest: dict[str, float] = {}
        self.publishes, self.is_evaluating = True, False

    def log(
        self, name: str, value: Any, prog_bar: bool = False, weight: Any = None, reduce: str = "mean"
    ) -> None:
        """``TrainModule.log``."""
        self.current.log(name, value, prog_bar, weight, reduce)

    @contextmanager
    def logging_to(self, store: MetricStore) -> Iterator[None]:
        """What is logged inside goes to ``store``: it is an evaluation's."""
        before, self.is_evaluating = self.is_evaluating, True
        try:
            with self._storing_in(store):
                yield
        finally:
            self.is_evaluating = before

    @contextmanager
    def refusing(self, place: str) -> Iterator[None]:
        """Logging is an error inside: the value would not be published.

        Args:
            place: The hook or stage, for the error.
        """
        with self._storing_in(NoLogging(place, self._log_line, self._strategy)):
            yield

    @contextmanager
    def _storing_in(self, store: MetricStore) -> Iterator[None]:
        before, self.current = self.current, store
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def nothing_published(self) -> Iterator[dict[str, float]]:
        """Values that are published inside into the dictionary it gives are gone afterwards."""
        before, self.publishes = dict(self.latest), False
        try:
            yield self.latest
        finally:
            self.publishes = True
            self.latest.clear()
            self.latest.update(before)

    def publish(self, values: dict[str, float]) -> None:
        """Make reduced values the latest ones and write them as a row."""
        if not values:
            return
        self.latest.update(values)
        state = self._state
        row = {
            "step": state.global_step,
            "epoch": state.epoch,
            "time": round(self._clock.seconds(), 3),
            "samples": state.samples,
        }
        for writer in self._writers:
            writer.put(row | values)

    def close_writers(self) -> None:
        """Let loggers write what waits for them, for ten seconds each, and report what they did not get."""
        for writer in self._writers:
            writer.close(SECONDS)

    def publish_each(self, hooks: Iterable[Callable[..., None]], *args: Any) -> None:
        """Call hooks; what each of them logs is published after it."""
        for hook in hooks:
            hook(*args)
            self.publish(self.train.take_window())

    def publish_at_the_end(self, hooks: Iterable[Callable[..., None]], *args: Any) -> None:
        """Call the hooks of the end of a fit, and publish what each of them logs after it.

        The sums of a window that a stop has cut stay as they are, for the run that resumes. A hook that
        fails keeps no other one from being called, and so no checkpoint from being written.

        Raises:
            Exception: the first that a hook raised, with notes of the others.
        """
        failed: Exception | None = None
        for writer in self._writers:
            writer.flush(SECONDS)
        store = MetricStore("train", self._log_line, self._strategy)
        with self._storing_in(store):
            for hook in hooks:
                try:
                    hook(*args)
                    self.publish(store.close_epoch())
                except Exception as error:
                    if failed is None:
                        failed = error
                    else:
                        failed.add_note(f"then on_fit_end failed too: {type(error).__name__}: {error}")
        if failed is not None:
            raise failed

    def require(self, name: str, who: str) -> float:
        """The latest value of ``name``.

        Raises:
            PacelineError: when it was never logged; the message names ``who`` as needing it.
        """
        if name not in self.latest:
            raise PacelineError(
                f"{who} watches {name!r}, which was not logged",
                where=f"after step {self._state.global_step}",
                got=f"logged: {', '.join(self.latest) or 'nothing'}",
                meant=nearest(name, self.latest),
            )
        return self.latest[name]

    def state_dict(self) -> dict[str, Any]:
        """The latest values, and the sums of the current window and epoch over all ranks. On all ranks."""
        return {"latest": self.latest, "train": self.train.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the latest values; sums are each rank's (``MetricStore.load_state_dict``)."""
        self.latest.update(state["latest"])
