"""Functions for files, at whatever address, that Lightning code imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def get_filesystem(path: str | Path, **options: Any) -> Any:
    """The ``fsspec`` file system of a path or address.

    Args:
        path: ``"s3://bucket/file"``, or a local path.
        **options: Of the file system.

    Example:
        >>> get_filesystem("runs").protocol
        ('file', 'local')
    """
    from fsspec.core import url_to_fs  # a package of torch's

    return url_to_fs(str(path), **options)[0]
