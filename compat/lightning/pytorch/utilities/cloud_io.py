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


def _load(path_or_url: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
    """``torch.load`` of a file, at whatever address, or of one that is open."""
    import torch

    options = {"map_location": map_location, "weights_only": weights_only}
    if not isinstance(path_or_url, (str, Path)):
        return torch.load(path_or_url, **options)
    with get_filesystem(path_or_url).open(str(path_or_url), "rb") as file:
        return torch.load(file, **options)
