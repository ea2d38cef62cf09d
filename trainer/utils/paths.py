"""Paths as users give them, and as messages show them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...common.remote_paths import cached_path, is_remote, url_of
from ...common.retries import error_number
from ...errors import PacelineError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def as_path(given: Any, what: str, *, remote: bool = False) -> Path:
    """An absolute path, ``~`` expanded: the same one after ``os.chdir``.

    Args:
        given: A string or path-like object.
        what: What takes it, for the error.
        remote: Accept an address such as ``s3://bucket/runs``: the path is that of its local copy.

    Raises:
        PacelineError: for anything else.
    """
    if is_remote(given):
        if not remote:
            raise PacelineError(
                f"{what} takes a path on this machine",
                code="invalid-path",
                got=str(given),
                fix="write there, and copy it afterwards",
            )
        return cached_path(given)
    if isinstance(given, str) and given.lower().startswith("file://"):
        given = given[len("file://") :]
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise PacelineError(
            f"{what} takes a path", code="invalid-path", got=given, allowed="a string or a Path"
        )
    if max(len(os.fsencode(part)) for part in text.split(os.sep)) > 255 or len(text) > 4000:
        raise PacelineError(
            f"{what}: the path is too long for a file system", code="invalid-path", got=text
        )
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise PacelineError(
            f"{what}: the path cannot be expanded", code="invalid-path", got=text, allowed=str(error)
        ) from None


@contextmanager
def writing(what: str, path: Path, elsewhere: str = "write elsewhere") -> Iterator[None]:
    """Name what cannot be written, and what to do, where the system refuses to write in this block.

    Args:
        what: As the beginning of a sentence.
        path: Where it goes.
        elsewhere: How another place is chosen.

    Raises:
        PacelineError: in place of an error of the system, and of what safetensors makes of one.

    Example:
        >>> with writing("the report", Path("/dev/full")):
        ...     Path("/dev/full").write_text("a page")
        Traceback (most recent call last):
        paceline.errors.PacelineError: the report cannot be written
          where: /dev/full
          got: [Errno 28] No space left on device
          fix: make room there, or write elsewhere
          more: paceline explain cannot-write
    """
    try:
        yield
    except Exception as error:
        number, text = error_number(error), str(error)
        by_system = isinstance(error, OSError) or number is not None
        if isinstance(error, PacelineError) or not by_system:
            raise
        raise PacelineError(
            f"{what} cannot be written",
            code="cannot-write",
            where=str(path),
            got=text.splitlines()[0] if text else type(error).__name__,
            fix=f"{'make room there' if number in _NO_ROOM else 'get the right to write there'}, "
            f"or {elsewhere}",
        ) from None


def shown_path(path: Path) -> str:
    """A path as people read it: relative where it lies below the current folder; an address as it is."""
    if (url := url_of(path)) is not None:
        return url
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
