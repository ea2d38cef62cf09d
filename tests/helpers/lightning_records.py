"""Compares what programs written for Lightning did under it and under ``paceline.compat.lightning``."""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
import struct
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .environment import TESTS, clean_environment

OURS, THEIRS = "paceline.compat.lightning", "lightning"
FOLDER = TESTS / "compat" / "lightning"


class Program(NamedTuple):
    """A function of a file in programs/, as recorder.py takes it."""

    path: Path
    function: str

    @property
    def name(self) -> str:
        """As in what recorder.py writes."""
        return self.path.stem + self.function.removeprefix("main")

    def __str__(self) -> str:
        return f"{self.path}:{self.function}"


PROGRAMS = [
    Program(path, function)
    for path in sorted((FOLDER / "programs").glob("*.py"))
    for function in re.findall(r"^def (main\w*)\(", path.read_text(), re.MULTILINE)
]
SECONDS = 480  # what all programs may take under one package on a machine that is busy
TOLERANCE = 1e-6

Found = dict[str, Any]
"""What recorder.py writes of a program."""

_LOADERS = "data is opened before optimizers are configured, so that they know how long the run is"
_RESTORED = "a checkpoint is restored when optimizers exist, before on_fit_start"
_AHEAD = "all batches of an optimizer step are on the device when it begins"
_LAST = "last.ckpt is the checkpoint that was written before, not another one"
EXCEPTIONS: dict[str, dict[str, str]] = {
    "*": {"train_dataloader": _LOADERS, "val_dataloader": _LOADERS},
    "all_hooks_accumulated": dict.fromkeys(
        ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"), _AHEAD
    ),
    "all_hooks_resumed": dict.fromkeys(
        ("configure_optimizers", "load_state_dict", "on_load_checkpoint"), _RESTORED
    ),
    "wgan": {
        **dict.fromkeys(("configure_optimizers", "on_load_checkpoint"), _RESTORED),
        "on_save_checkpoint": "what is the best checkpoint and the last one is written once",
    },
    "stateful_data": {"configure_optimizers": _RESTORED},
    "custom_callbacks": {"state_dict": "a checkpoint is written at the end of a run too"},
    "ddpm": {"state_dict": _LAST, "configure_optimizers": _RESTORED, "load_state_dict": _RESTORED},
    "dqn": {"on_save_checkpoint": "the newest checkpoint is always kept, not the best ones alone"},
    "moco": {"on_save_checkpoint": _LAST},
}
"""By program, or "*" for all: hooks whose calls are not compared, each with its reason."""
OTHER_NUMBERS = {
    "all_hooks_accumulated": "the last step of an epoch has one batch of two: its gradient is that batch's "
    "here, and half of it under Lightning",
    "swa": "batch norms get the statistics of the average without a sixth epoch with its validation",
}
"""By program: why its numbers end up different."""


def ignored_of(program: str) -> set[str]:
    """The hooks of a program whose calls are not compared."""
    return {*EXCEPTIONS["*"], *EXCEPTIONS.get(program, {})}


def missing() -> list[str]:
    """The packages of the two that are not installed."""
    return [name for name in (THEIRS, OURS) if not is_installed(name)]


def is_installed(name: str) -> bool:
    """Whether there is this package."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def record(
    package: str,
    folder: Path,
    programs: Iterable[Program],
    *arguments: object,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Found]:
    """Run the programs under a package in a process with these variables; what each did, by name."""
    given = [*map(str, programs), *map(str, arguments)]
    return _run("recorder.py", package, folder, given, variables or {})


def corners(package: str, folder: Path, variables: Mapping[str, str]) -> Found:
    """What the cases of corners.py find under a package, by name, in a separate process."""
    return _run("corners.py", package, folder, [], variables)


def _run(
    script: str, package: str, folder: Path, arguments: list[str], variables: Mapping[str, str]
) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    out, log = folder / f"{package}.json", folder / f"{package}.log"
    # Else each of our fits scans all that is imported, which takes longer than its steps.
    through = ["-m", "helpers.frozen_imports"] if package == OURS else []
    with log.open("w") as printed:
        subprocess.run(
            [sys.executable, *through, str(FOLDER / script), package, str(out), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=clean_environment(**variables),
            timeout=SECONDS,
            check=False,
        )
    assert out.exists(), log.read_text()[-5000:]
    return json.loads(out.read_text())  # type: ignore[no-any-return]


# -- numbers -------------------------------------------------------------------------------------


def different_metrics(theirs: Found, ours: Found) -> list[str]:
    """The values of callback_metrics that differ, with what they are.

    A value that was logged as it is, of a single step, is equal bit for bit. A mean over an epoch is equal
    within 1e-6 of it: ours is added up in double precision, Lightning's in single precision.
    """
    exact = {(_logged_name(name), _single(value)) for name, value in theirs["logged"] if value != "metric"}
    pairs = [*theirs["metrics_during"], ["end", theirs["metrics"]]]
    others = [*ours["metrics_during"], ["end", ours["metrics"]]]
    found = _different([place for place, _ in pairs], [place for place, _ in others])
    for (place, one), (_, other) in zip(pairs, others, strict=False):
        if set(one) != set(other):
            found.append(f"{place}: names {sorted(one)} there, {sorted(other)} here")
        for name in sorted(set(one) & set(other)):
            there, here = _single(one[name]), _single(other[name])
            single = (_logged_name(name), there) in exact
            if not (there == here or (not single and _near(there, here))):
                found.append(f"{place}: {name} is {there!r} there, {here!r} here")
    return found


def different_logged(theirs: Found, ours: Found) -> list[str]:
    """The values passed to ``log`` that differ."""
    rows = [[f"{name} {_single(value)}" for name, value in one["logged"]] for one in (theirs, ours)]
    return _different(*rows)


def _logged_name(name: str) -> str:
    return re.sub(r"(_step|_epoch)?(/dataloader_idx_\d+)?$", "", name)


def _single(text: str) -> str | float:
    """The value in single precision, as Lightning keeps each; NaN is its name."""
    if text in ("metric", "nan"):
        return text
    value: float = struct.unpack("f", struct.pack("f", float.fromhex(text)))[0]
    return value


def _near(there: Any, here: Any) -> bool:
    if isinstance(there, str) or isinstance(here, str):
        return False
    return abs(there - here) <= TOLERANCE * max(abs(there), abs(here))


# -- hooks ---------------------------------------------------------------------------------------


def different_calls(theirs: Found, ours: Found, ignored: Collection[str] = ()) -> list[str]:
    """The lines of a diff of the hook calls; of those that draw random numbers without the numbers."""
    draws = theirs["draws"] is not None
    rows = [
        [_line(call, draws) for call in one["calls"] if call[1] not in ignored] for one in (theirs, ours)
    ]
    return _different(*rows)


def _line(call: list[Any], draws: bool) -> str:
    owner, name, arguments, *returned = call
    text = f"{owner}.{name}({', '.join(map(_shown, arguments))})"
    text += "".join(f" -> {_shown(value)}" for value in returned)
    return re.sub(r"(?<=[\s(:])(-?\d+\.\d+(e-?\d+)?|nan|-?inf)", "?", text) if draws else text


def _shown(value: Any) -> str:
    return json.dumps(value).replace('"', "")


def _different(there: list[str], here: list[str]) -> list[str]:
    lines = difflib.unified_diff(there, here, "lightning", "paceline", lineterm="", n=3)
    return list(lines)[:60]
