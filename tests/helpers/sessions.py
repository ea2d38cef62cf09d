"""Commands, one after another; the interpreters are forks of a process that has imported the package."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .environment import clean_environment
from .ranks import forked_python, run_ranks

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


def run_shell(lines: str, folder: Path, programs: Path) -> str:
    """The standard output of a shell that runs these lines, each of which must end well.

    Args:
        programs: A folder of ``forked_programs``.
    """
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=folder,
        env=clean_environment(PATH=path, CUDA_VISIBLE_DEVICES="", COLUMNS=120),
        capture_output=True,
        text=True,
        timeout=200,
    )
    output = f"{lines}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    assert done.returncode == 0, output
    assert "Traceback" not in output, output
    return done.stdout


def forked_programs(folder: Path, more: str = "") -> Path:
    """Make ``python`` and ``paceline`` in a new folder.

    Args:
        more: As for ``forked_python``.
    """
    folder.mkdir()
    python = forked_python(more)
    (folder / "python").symlink_to(python)
    (folder / "paceline").write_text(f'#!/bin/sh\nexec {python} -m paceline "$@"\n')
    (folder / "paceline").chmod(0o755)
    return folder
