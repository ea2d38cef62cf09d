"""numpy's global generator, watched: whoever uses it takes its lock, which is ours.

To read and to write that generator's state takes 50 us each, and nothing shows whether it was used. Its
functions hold ``BitGenerator.lock`` while they draw, seed and show the state. So a seed is set, and the
state of before kept, only when something is about to use it, which most batches never do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

_random: Any = np.random  # whose stubs lack two of its names


class Kept:
    """What ``keep`` gives and ``put_back`` takes.

    Attributes:
        state: The generator's, once it was used.
        seed: What it was to be seeded with at its next use.
        outer: What was kept before this, and is to be put back after it.
        of: The lock that sees the use; None where the state was read at once.
    """

    def __init__(self, state: Any, of: Lock | None = None) -> None:
        self.state, self.of = state, of
        self.seed, self.outer = (None, None) if of is None else (of.seed, of.kept)


class Lock:
    """The lock of a generator; what is pending happens before the use that takes it."""

    def __init__(self, generator: Any = np.random) -> None:
        self.generator = generator
        self._lock = threading.RLock()  # what is pending takes it too
        self.pending = False
        self.seed: int | None = None
        self.kept: Kept | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As that of a lock of ``threading``."""
        taken = self._lock.acquire(blocking, timeout)
        if taken and self.pending:
            self._begin_use()
        return taken

    def release(self) -> None:
        """As that of a lock of ``threading``."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.pending:
            self._begin_use()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _begin_use(self) -> None:
        self.pending, seed, self.seed = False, self.seed, None
        try:
            self._keep_state(self.kept)
            if seed is not None:
                self.generator.seed(seed)
        except BaseException:  # a signal's handler may raise
            self._lock.release()
            raise

    def _keep_state(self, kept: Kept | None) -> None:
        if kept is None or kept.state is not None:
            return
        self._keep_state(kept.outer)
        if kept.seed is not None:
            self.generator.seed(kept.seed)
        kept.state = self.generator.get_state()

    def expect(self, seed: int | None) -> None:
        """Seed the generator before it is used next, or leave it as it is."""
        self.seed = seed
        self.pending = seed is not None or (self.kept is not None and self.kept.state is None)


class MT19937(np.random.MT19937):
    """numpy's own, of the same name: its state says what it is."""

    def __init__(self, lock: Lock) -> None:
        super().__init__(0)
        self._watching = lock

    @property
    def lock(self) -> Any:  # type: ignore[override]
        """What numpy takes before each use."""
        return self._watching

    @property
    def state(self) -> Any:
        """numpy's; it would be read without the lock."""
        with self._watching:
            return vars(np.random.MT19937)["state"].__get__(self)

    @state.setter
    def state(self, value: Any) -> None:
        with self._watching:
            vars(np.random.MT19937)["state"].__set__(self, value)

    def random_raw(self, *args: Any, **kwargs: Any) -> Any:
        """numpy's; it would be drawn without the lock."""
        with self._watching:
            return super().random_raw(*args, **kwargs)

    def __reduce__(self) -> Any:
        plain = np.random.MT19937()
        plain.state = self.state
        return plain.__reduce__()


_lock = Lock()
_ours: MT19937 | None = None
_takes_locks: bool | None = None


def is_watched() -> bool:
    """Whether numpy's global generator is; it is made so where that is possible."""
    global _ours
    if _ours is not None and _random.get_bit_generator() is _ours:
        return True
    if type(_random.get_bit_generator()) is not np.random.MT19937 or not _shows_all_uses():
        return False
    ours, state = MT19937(_lock), np.random.get_state()
    _random.set_bit_generator(ours)
    np.random.set_state(state)
    _lock.seed, _lock.kept, _lock.pending, _ours = None, None, False, ours
    return True


_USES: tuple[Callable[[Any], Any], ...] = (
    lambda generator: generator.random_sample(),
    lambda generator: (generator.randn(), generator.randn()),  # numpy makes two, and keeps one
    lambda generator: generator.randint(9),
    lambda generator: generator.permutation(9),
    lambda generator: generator.bytes(9),
    lambda generator: generator.seed(9),
    lambda generator: generator.get_state(),
    lambda generator: generator.set_state(np.random.RandomState(9).get_state()),
)


def _shows_all_uses() -> bool:
    """Whether this version of numpy takes the lock of a class derived from its own before every use."""
    global _takes_locks
    if _takes_locks is None:
        _takes_locks = all(map(_is_seen, _USES))
    return _takes_locks


def _is_seen(use: Callable[[Any], Any]) -> bool:
    plain, other = np.random.RandomState(5), np.random.RandomState(3)
    lock = Lock()
    lock.generator = watched = np.random.RandomState(MT19937(lock))
    watched.set_state(other.get_state())
    kept = lock.kept = Kept(None, lock)
    lock.expect(5)
    given = _bytes_of(use(plain)) == _bytes_of(use(watched))
    left = _bytes_of(plain.get_state()) == _bytes_of(watched.get_state())
    return bool(given and left and _bytes_of(kept.state) == _bytes_of(other.get_state()))


def _bytes_of(found: Any) -> Any:
    """What a use gives, to be compared."""
    parts = found if isinstance(found, tuple) else [found]
    return [part.tobytes() if isinstance(part, np.ndarray) else part for part in parts]


def seed(number: int) -> None:
    """Seed the generator: at its next use, where it is watched.

    Args:
        number: From 0 to 2**32 - 1.
    """
    if is_watched():
        _lock.expect(number)
    else:
        np.random.seed(number)


def used_since_seeded() -> bool:
    """Whether the generator may have been used since ``seed``: surely not, where it is False."""
    return _lock.seed is None or not is_watched()


def keep() -> Kept:
    """From here on nothing that happens to the generator remains after ``put_back``."""
    if not is_watched():
        return Kept(np.random.get_state())
    kept = _lock.kept = Kept(None, _lock)
    _lock.expect(None)
    return kept


def put_back(kept: Kept) -> None:
    """Have the generator as it was at ``keep``, what was pending included."""
    if kept.of is not None:
        kept.of.kept = kept.outer
        kept.of.expect(kept.seed if kept.state is None else None)
    if kept.state is not None:
        np.random.set_state(kept.state)
