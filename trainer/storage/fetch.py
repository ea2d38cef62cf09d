"""Data in an object store, fetched once to each machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...common.remote_paths import is_remote
from ...errors import PacelineError
from ..utils.paths import as_path
from .locked import locked
from .remote import Remote


def fetch(url: str | os.PathLike[str]) -> Path:
    """The local copy of a file or folder in an object store; a path on this machine is returned as it is.

    The copy is in ``~/.cache/paceline``, or below ``PACELINE_CACHE``. Files that are unchanged in the store
    are not fetched again, and those that it no longer has are deleted from the copy. All ranks may call
    it: one process of a machine fetches, the others wait.

    Args:
        url: ``"s3://bucket/digits"``, ``"gs://..."``, ``"hf://datasets/..."``: any address that fsspec
            knows. Credentials are those that the store's own tools find.

    Returns:
        The path of the file or folder.

    Raises:
        PacelineError: when there is nothing at the address, and when the store cannot be read.

    Example:
        >>> fetch("data/digits").as_posix().endswith("data/digits")
        True
    """
    path = as_path(url, "fetch", remote=True)
    if not is_remote(url):
        return path
    remote = Remote(os.fspath(url))
    with locked(path):
        there = remote.versions()
        if not there:
            raise PacelineError("there is nothing at this address", code="file-not-found", where=remote.url)
        noted = path.parent / f".{path.name}.fetched"
        here: dict[str, Any] = json.loads(noted.read_text()) if noted.exists() else {}
        local = {name: path / name if name else path for name in there.keys() | here.keys()}
        wanted = [name for name in there if here.get(name) != there[name] or not local[name].exists()]
        remote.fetch({name: local[name] for name in wanted})
        for name in here.keys() - there.keys():
            local[name].unlink(missing_ok=True)
        noted.write_text(json.dumps(there))
    return path
