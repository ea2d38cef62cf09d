"""Logged values of a run: where they are kept, the latest ones, and the rows that loggers write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...callbacks.loggers.media import Media
from ...errors import PacelineError, nearest
from ...strategies.ranks.collectives import Collectives
from ..state import Clock, TrainState
from .logger_queue import LoggerQueue
from .store import MetricStore

SECONDS = 10.0
TOKENS = "perf/tokens_since_log_point"  # the returned weights, summed


class NoLogging(MetricStore):
    """A store that refuses values, where they would not be published.

    Args:
        place: The hook or stage, for the error.
        log_line: As a store takes it.
        ranks: As a store takes them.
    """

    def __init__(self, place: str, log_line: Callable[[str], None], ranks: Collectives) -> None:
        super().__init__("", log_line, ranks)
        self._place = place

    def log(self, name: str, *args: Any, **options: Any) -> None:
        """Refuse the value.

        Raises:
            PacelineError: always.
        """
        raise self._refusal(name)

    def full_name(self, name: str) -> str:
        """Refuse it: an image, a table or the like.

        Raises:
            PacelineError: always.
        """
        raise self._refusal(name)

    def _refusal(self, name: str) -> PacelineError:
        return PacelineError(
            f"nothing can be logged in {self._place}",
            code="log-not-here",
            got=f"log({name!r})",
            allowed="every step, and the hooks from on_fit_start to on_fit_end, from "
            "on_validation_start to on_validation_end, and so on",
        )


class MetricLogger:
    """Takes values, reduces them at log points, and passes rows to the loggers on rank 0.

    Args:
        ranks: Over which values are reduced.
        state, clock: Where the run is, for the rows.
        queues: Each passes rows and media to a logger, as ``callbacks.Logger`` describes them.
        log_line: Takes a line for the log.

    Attributes:
        train: What the training steps log.
        current: What takes the values that are logged now: ``train``, or the store of an evaluation.
        latest: The latest reduced values by full name, plain floats, the same on every rank.
        publishes: False during the sanity pass, of which nothing is kept.
        is_evaluating: Whether values belong to an evaluation at the moment.

    Example:
        >>> from paceline.strategies import Collectives
        >>> state, rows = TrainState(global_step=3), []
        >>> class Keeps(Logger):
        ...     background = False
        ...     def write(self, row):
        ...         rows.append(row)
        >>> logger = MetricLogger(Collectives(), state, Clock(state), [LoggerQueue(Keeps(), print)], print)
        >>> logger.log("accuracy", 0.5)
        >>> logger.publish(logger.train.close_window())
        >>> rows
        [{'step': 3, 'epoch': 0, 'time': 0.0, 'samples': 0, 'train/accuracy': 0.5}]
    """

    def __init__(
        self,
        ranks: Collectives,
        state: TrainState,
        clock: Clock,
        queues: Iterable[LoggerQueue],
        log_line: Callable[[str], None],
    ) -> None:
        self._state, self._clock = state, clock
        self._queues = list(queues) if ranks.is_global_zero else []
        self._log_line = log_line
        self._ranks = ranks
        self.train = self.current = MetricStore("train", log_line, ranks)
        self.latest: dict[str, float] = {}
        self.publishes, self.is_evaluating = True, False
        self._tokens, self._tokens_step = 0.0, -1

    def log(
        self, name: str, value: Any, prog_bar: bool = False, weight: Any = None, reduce: str = "mean"
    ) -> None:
        """``TrainModule.log``."""
        self.current.log(name, value, prog_bar, weight, reduce)

    def log_media(self, name: str, kind: type[Media], make: Callable[[], Media]) -> None:
        """Pass an image, histogram, table or text to the loggers that show its kind. Only rank 0 makes it.

        Args:
            name: As ``log`` takes it.
            kind: What ``make`` returns.
            make: Called at most once, and not where no logger shows it.
        """
        full = self.current.full_name(name)
        queues = [queue for queue in self._queues if queue.shows(kind, full)] if self.publishes else []
        if queues:
            media, row = make(), self._position()
            for queue in queues:
                queue.put_media(row, full, media)

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
        with self._storing_in(NoLogging(place, self._log_line, self._ranks)):
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
        self._count_tokens()
        row = self._position()
        for queue in self._queues:
            queue.put(row | values)

    def _position(self) -> dict[str, float]:
        """Where the run is: what each row begins with."""
        state = self._state
        row: dict[str, float] = {
            "step": state.global_step,
            "epoch": state.epoch,
            "time": round(self._clock.seconds(), 3),
            "samples": state.samples,
        }
        if self._tokens and self._tokens_step == state.global_step:
            row["tokens"] = int(self._tokens) if self._tokens.is_integer() else self._tokens
        return row

    def _count_tokens(self) -> None:
        """The tokens up to this step, where ``training_step`` returns weights. On all ranks."""
        state = self._state
        counts = state.tokens or state.weight_reference is not None or self.train.has(TOKENS)
        if counts and self._tokens_step != state.global_step:
            self._tokens = state.tokens + self.train.peek_window().get(TOKENS, 0.0)
            self._tokens_step = state.global_step

    def close_window(self) -> dict[str, float]:
        """The values of the training steps since the last call, by full name. On all ranks."""
        values = self.train.close_window()
        if TOKENS in values:
            self._tokens = self._state.tokens = self._state.tokens + values.pop(TOKENS)
            self._tokens_step = self._state.global_step
        return values

    def close_epoch(self) -> dict[str, float]:
        """The means of the epoch's training steps, by full name. On all ranks."""
        return {name: value for name, value in self.train.close_epoch().items() if name != TOKENS}

    def peek_window(self) -> dict[str, float]:
        """The values since the window was closed, which stay in it. On all ranks."""
        return {name: value for name, value in self.train.peek_window().items() if name != TOKENS}

    def close_queues(self) -> None:
        """Let loggers write what waits for them, for ten seconds each, and report what they did not get."""
        for queue in self._queues:
            queue.close(SECONDS)

    def publish_each(self, hooks: Iterable[Callable[..., None]], *args: Any) -> None:
        """Call the hooks of the end of an epoch; what each of them logs is published after it.

        Torchmetrics objects are reset after them all.
        """
        try:
            for hook in hooks:
                hook(*args)
                self.publish(self.train.take_window() | self.train.take_objects())
        finally:
            self.train.reset_objects()

    def publish_at_the_end(self, hooks: Iterable[Callable[..., None]], *args: Any) -> None:
        """Call the hooks of the end of a fit, and publish what each of them logs after it.

        The sums of a window that a stop has cut stay as they are, for the run that resumes. A hook that
        fails keeps no other one from being called, and so no checkpoint from being written.

        Raises:
            Exception: the first that a hook raised, with notes of the others.
        """
        failed: Exception | None = None
        for queue in self._queues:
            queue.flush(SECONDS)
        store = MetricStore("train", self._log_line, self._ranks)
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
        store.reset_objects()
        if failed is not None:
            raise failed

    def held_objects(self) -> list[Any]:
        """The torchmetrics objects that hooks of an end see whole, and that are reset after them."""
        stores = {id(store): store for store in (self.train, self.current)}
        return [metric for store in stores.values() for metric in store.held]

    def require(self, name: str, who: str) -> float:
        """The latest value of ``name``.

        Raises:
            PacelineError: when it was never logged; the message names ``who`` as needing it.
        """
        if name not in self.latest:
            raise PacelineError(
                f"{who} watches {name!r}, which was not logged",
                code="metric-not-logged",
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
