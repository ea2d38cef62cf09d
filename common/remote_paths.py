"""Folders in an object store: each has a local one in the cache, by its address alone.

``s3://bucket/runs`` is ``~/.cache/paceline/s3/bucket/runs`` here, or below ``PACELINE_CACHE``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from ..errors import PacelineError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # pathlib leaves one / of two
_PASSWORD = re.compile(r"[^/]*:.*@|[^/]*@")


def is_remote(given: object) -> bool:
    """Whether this is the address of something in an object store, as a string or as a Path.

    Example:
        >>> is_remote("s3://bucket/runs"), is_remote("runs"), is_remote("file:///tmp/runs")
        (True, False, False)
    """
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else ""
    return isinstance(text, str) and bool(_URL.match(text)) and not text.lower().startswith("file:")


def cache_folder() -> Path:
    """Where local copies are: ``PACELINE_CACHE``, else ``~/.cache/paceline``."""
    given = os.environ.get("PACELINE_CACHE") or "~/.cache/paceline"
    return Path(given).expanduser().absolute()


def cached_path(given: str | os.PathLike[str]) -> Path:
    """The local path of an address.

    Raises:
        PacelineError: for an address with a user name and password, and for one that is no path.

    Example:
        >>> cached_path("s3://bucket/runs/net").relative_to(cache_folder()).as_posix()
        's3/bucket/runs/net'
    """
    url = os.fspath(given)
    found = _URL.match(url)
    assert found is not None
    scheme, place = found[1].lower(), found[2]
    if _PASSWORD.match(place):
        raise PacelineError(
            "an address with a user name or password would be written into logs and configurations",
            code="invalid-path",
            got=_masked(url),
            fix="give credentials by environment variables (AWS_ACCESS_KEY_ID and the like) or by the "
            "file that the store's own tools read",
        )
    parts = PurePosixPath(place).parts
    if not parts or ".." in parts or "?" in place or "#" in place:
        raise PacelineError(
            "this is no address of a folder",
            code="invalid-path",
            got=_masked(url),
            allowed="s3://bucket/path",
        )
    return cache_folder().joinpath(scheme, *parts)


def url_of(path: Path) -> str | None:
    """The address that a path in the cache is the copy of; None for a path elsewhere.

    Example:
        >>> url_of(cached_path("s3://bucket/runs")), url_of(Path("/tmp/runs"))
        ('s3://bucket/runs', None)
    """
    cache = cache_folder()
    if not path.is_relative_to(cache):
        cache = cache.resolve()  # of a path whose links were followed
    parts = path.relative_to(cache).parts if path.is_relative_to(cache) else ()
    return f"{parts[0]}://{'/'.join(parts[1:])}" if len(parts) > 1 else None


def _masked(url: str) -> str:
    return re.sub(r"(:/+).*@", r"\1***@", url)
