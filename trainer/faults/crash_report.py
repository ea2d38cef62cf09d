"""What is known of a run at the moment it fails, in one file beside its log."""

from __future__ import annotations

import json
import os
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from .thread_stacks import all_stacks

if TYPE_CHECKING:
    from ..session import Session


def write_crash_report(trainer: Session, error: BaseException) -> Path | None:
    """``crash-rank-<n>.txt`` in the run folder: the error, all threads' stacks, the latest metrics, the
    environment and the configuration. None where the run writes nothing.
    """
    if trainer.folder is None:
        return None
    path = trainer.folder / f"crash-rank-{trainer.rank}.txt"
    state = trainer.state
    parts = {
        "where": f"{trainer.stage}, {trainer.place}, {state.position} samples into the epoch, "
        f"rank {trainer.rank} of {trainer.world}, process {os.getpid()}",
        "error": "".join(traceback.format_exception(error)),
        "metrics": json.dumps(trainer.metrics, indent=1),
        "configuration": yaml.safe_dump(trainer.config(), sort_keys=False, allow_unicode=True),
    }
    with suppress(OSError):  # a full disk is what many runs fail of
        environment = trainer.folder / "env.json"
        parts["environment"] = environment.read_text() if environment.exists() else ""
        parts["stacks"] = all_stacks()
        with path.open("w", encoding="utf-8") as file:
            for name, text in parts.items():
                file.write(f"== {name}\n{text.rstrip()}\n\n")
        return path
    return None
