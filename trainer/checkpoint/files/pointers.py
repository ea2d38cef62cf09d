"""Small files beside checkpoints that name one of them: ``latest``, ``best``."""

from __future__ import annotations

import os
from pathlib import Path

from ....common.retries import retried
from . import commit
from . import format as files


def write_pointer(path: Path, name: str) -> None:
    """A small file that names a checkpoint beside it, replaced in one operation."""
    staging = commit.staging_of(path)

    def replace() -> None:
        staging.write_text(name + "\n")
        os.replace(staging, path)

    retried(replace)


def read_pointer(path: Path) -> Path | None:
    """The checkpoint that a pointer names; None where it does not exist."""
    try:
        target = path.parent / Path(retried(path.read_text).strip()).name
    except (OSError, UnicodeDecodeError):
        return None
    return target if files.is_checkpoint(target) else None
