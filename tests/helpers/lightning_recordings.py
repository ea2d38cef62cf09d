"""What Lightning itself did, kept in tests/compat/lightning/recorded, so that it need not run each time.

A recording has the versions it came from and a digest of the source files that made it. A changed source
is an error. Under other versions, under kernels with other results, and under ``--soak`` Lightning runs
again, where it is installed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import lightning_records as records
from .arithmetic import KERNELS
from .environment import TESTS

FOLDER = records.FOLDER / "recorded"
CORNERS = "corners"
SOURCES = {program.name: program.path for program in records.PROGRAMS} | {
    CORNERS: records.FOLDER / "corners.py"
}
HELPERS = (records.FOLDER / "recorder.py", TESTS / "helpers" / "arithmetic.py")
ARGUMENTS = ("--option", 'accelerator="cpu"')
NOT_KEPT = ("seconds", "processor_seconds")
NEEDED = "needs lightning: its recording is of another version of torch, or of kernels with other results"

Run = Callable[[list[str]], dict[str, records.Found]]
"""Runs Lightning for these names; what it did, by name."""


def digest(name: str) -> str:
    """SHA-256 of the files that make a recording."""
    found = hashlib.sha256()
    for path in (SOURCES[name], *HELPERS):
        found.update(path.read_text().encode())
    return found.hexdigest()


def file_of(name: str) -> Path:
    """Where the recording of a program is."""
    return FOLDER / f"{name}.json"


def check(name: str) -> None:
    """Fail where there is no recording of the program as it is now."""
    path = file_of(name)
    advice = f"run: python tests/compat/lightning/record.py {name}"
    assert path.exists(), f"{name} has no recording; {advice}"
    recorded = json.loads(path.read_text())["sources"]
    assert recorded == digest(name), f"{name} has changed since what Lightning does was recorded; {advice}"


def write(name: str, found: dict[str, Any]) -> None:
    """Keep what Lightning did."""
    assert "error" not in found, f"{name}: {found['error']}"
    about = {"lightning": importlib.metadata.version("lightning"), "sources": digest(name)}
    kept = about | {key: value for key, value in found.items() if key not in NOT_KEPT}
    FOLDER.mkdir(exist_ok=True)
    file_of(name).write_text(_text(kept))


def _text(content: dict[str, Any]) -> str:
    """JSON with a line for each element, in which changes can be read."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value:
            rows = ",\n".join(json.dumps(one, separators=(",", ":")) for one in value)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def is_live(soak: bool) -> bool:
    """Whether Lightning runs, whatever is recorded."""
    return soak and records.is_installed(records.THEIRS)


def variables(soak: bool) -> dict[str, str]:
    """Environment variables of both sides: numbers are recorded under kernels that most processors have."""
    return {} if is_live(soak) else KERNELS


def theirs(
    names: Iterable[str], made_with: dict[str, Any], soak: bool, run: Run
) -> dict[str, records.Found]:
    """What Lightning did, by name: recorded, or run where the recording does not fit what is made here.

    Args:
        made_with: ``helpers.arithmetic.made_with`` of our side's process.
    """
    live, kept = is_live(soak), {}
    for name in names:
        if not live and file_of(name).exists():
            recorded = json.loads(file_of(name).read_text())
            if recorded["made_with"] == made_with and recorded["lightning"] == _installed(recorded):
                kept[name] = recorded
    rest = [name for name in names if name not in kept]
    if rest and records.is_installed(records.THEIRS):
        kept |= run(rest)
    return kept


def _installed(recorded: dict[str, Any]) -> str:
    """The version of Lightning that is installed; where none is, there is nothing newer to compare with."""
    if not records.is_installed(records.THEIRS):
        return str(recorded["lightning"])
    return importlib.metadata.version("lightning")
