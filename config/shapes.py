"""Whether a recipe is built for its shapes alone, as ``paceline estimate`` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_alone: ContextVar[bool] = ContextVar("shapes_alone", default=False)


def shapes_alone() -> bool:
    """Whether what a recipe builds now is asked for its shapes alone: nothing of it is computed.

    A recipe may then put parameters on the meta device and give a batch of any values, of the size that
    takes most memory, in place of reading weights and data.

    Example:
        >>> shapes_alone()
        False
    """
    return _alone.get()


@contextmanager
def for_shapes() -> Iterator[None]:
    """What is built inside is asked for its shapes alone.

    Example:
        >>> with for_shapes():
        ...     shapes_alone()
        True
    """
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)
