"""What is known of a run at the moment it fails, in one file beside its log."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..utils.paths import shown_path
from ..utils.secrets import masked_text
from .thread_stacks import all_stacks


def write_crash_report(
    folder: Path, rank: int, error: BaseException, where: str, parts: Mapping[str, str]
) -> Path | None:
    """``crash-rank-<n>.txt`` in the run folder: the error, ``parts``, env.json and stacks; no secrets.

    Args:
        folder: The run folder.
        rank: The rank of this process, part of the file's name.
        error: What ends the run, written with its traceback.
        where: How far the run was.
        parts: Further texts by their headings.

    Returns:
        The file; None where it could not be written.
    """
    path = folder / f"crash-rank-{rank}.txt"
    with suppress(OSError):  # a full disk is what many runs fail of
        environment = folder / "env.json"
        found = {
            "where": where,
            "error": "".join(traceback.format_exception(error)),
            **parts,
            "environment": environment.read_text("utf-8", "replace") if environment.exists() else "",
            "stacks": all_stacks(),
        }
        with path.open("w", encoding="utf-8") as file:
            for name, text in found.items():
                file.write(f"== {name}\n{masked_text(text).rstrip()}\n\n")
        return path
    return None


def replay_command(run: Path, step: int) -> str:
    """The command that runs a step again."""
    return f"paceline replay {shlex.quote(shown_path(run))} --step {step}"
