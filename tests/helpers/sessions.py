"""Commands of the package, one after another, each in a fork of a process that has imported it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .ranks import run_ranks

JOB = Path(__file__).parents[1] / "session_job.py"


def run_session(folder: Path, commands: Sequence[list[str]], how: str = "pipe") -> list[dict[str, object]]:
    """Run commands, each of which must end well; the interpreters that they start are forks.

    Args:
        commands: Their words, without ``paceline``.
        how: Whether they print into a "pipe" or on a "terminal".

    Returns:
        Of each its "words", and what it printed: "out", "err".
    """
    done = run_ranks(JOB, 1, how, json.dumps(commands), folder=folder, seconds=200, launches=True)
    found = json.loads(done.stdout)
    for words, one in zip(commands, found, strict=True):
        assert one["code"] == 0, (words, one["out"][-2000:], one["err"][-2000:])
        assert "Traceback" not in one["out"] + one["err"]
        one["words"] = words
    return found
