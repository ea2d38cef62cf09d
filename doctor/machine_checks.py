"""Checks of the machine. Each takes what it looks at as an argument and returns a finding."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from ..errors import PacelineError
from ..trainer.data.workers.file_descriptors import check_file_descriptors
from ..trainer.utils.machine import SHARED_MEMORY, space
from ..trainer.utils.text import shown_seconds, shown_size
from .finding import FAILED, OK, SKIPPED, WARNING, Finding, of_error

LEAST_SPACE, GOOD_SPACE = 256_000_000, 5_000_000_000
"""Free bytes of a folder below which a check fails, and below which it warns."""
LEAST_SHARED, GOOD_SHARED = 100_000_000, 1_000_000_000
"""Free bytes of shared memory of each rank, likewise. Docker's default is 64 MB in all."""
_PROBE = 1 << 20  # bytes that are written
_LARGE = 32 << 20  # bytes of the tensor that a loader worker hands over
_APART = 1.0  # seconds that clocks may be apart


def within(seconds: float, name: str, check: Callable[[], Finding]) -> Finding:
    """What a check finds; FAILED where it does not end in time, as on a file server that does not answer.

    Args:
        seconds: The deadline.
        name: Of the check.
        check: It may still run in a thread.
    """
    found: list[Finding] = []

    def run() -> None:
        try:
            found.append(check())
        except Exception as error:  # of ours too: a check that breaks is no reason to end the others
            found.append(of_error(name, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if found:
        return found[0]
    cure = "a file server or device that does not answer: see `mount`, `dmesg`, and the logs of the host"
    return Finding(name, FAILED, f"no answer in {shown_seconds(seconds)}", cure)


def check_folder(name: str, folder: Path, least: int = LEAST_SPACE, good: int = GOOD_SPACE) -> Finding:
    """Whether a folder, or the first one above it that exists, can be written to and has space.

    Args:
        name: Of the check.
        folder: It is not made.
        least: Free bytes below which the check fails.
        good: Free bytes below which it warns.
    """
    other = "another folder: Trainer(run_dir=...) for runs, the variable TMPDIR for temporary files"
    for place in (folder, *folder.parents):
        if place.exists():
            break
    if not place.is_dir():
        return Finding(
            name, FAILED, f"{place} is a file, where a folder is needed", f"remove it, or {other}"
        )
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\1" * _PROBE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        cure = f"permission to write there, or {other}"
        return Finding(name, FAILED, f"{place} cannot be written to: {error.strerror}", cure)
    free = (space(place) or (0, 0))[1]
    text = f"{folder}: {shown_size(free)} free"
    if free < good:
        cure = f"remove what is not needed there (old checkpoints: Checkpoint(keep=...)), or {other}"
        return Finding(name, FAILED if free < least else WARNING, text, cure)
    return Finding(name, OK, text)


def check_temporary_folder() -> Finding:
    """Whether there is a folder for temporary files: that of TMPDIR where it is set."""
    name = "temporary folder"
    try:
        folder = os.environ.get("TMPDIR") or tempfile.gettempdir()
    except OSError as error:
        return of_error(name, error, "TMPDIR=<a folder that can be written to>")
    return check_folder(name, Path(folder).absolute())


def check_open_files(workers: int) -> Finding:
    """Whether a rank may open enough files for so many loader workers."""
    try:
        check_file_descriptors(workers, None)
    except PacelineError as error:
        return of_error("open files", error)
    return Finding("open files", OK, f"enough for {workers} loader workers in each rank")


def check_shared_memory(ranks: int, folder: Path = SHARED_MEMORY) -> Finding:
    """Whether the loader workers of all ranks have room for the batches they hand over.

    Args:
        ranks: On this machine.
        folder: Where the shared memory is.
    """
    name, found = "shared memory", space(folder)
    if found is None:
        return Finding(name, SKIPPED, f"there is no {folder}")
    total, free = found
    text = f"{folder}: {shown_size(free)} free of {shown_size(total)}"
    cure = (
        "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir of medium Memory at /dev/shm; "
        "else DataLoader(num_workers=0)"
    )
    if free < ranks * GOOD_SHARED:
        return Finding(name, FAILED if free < ranks * LEAST_SHARED else WARNING, text, cure)
    return Finding(name, OK, text)


class LargeSample(Dataset[Any]):
    """One sample that is large, for a loader worker to hand over."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(_LARGE // 8)


def check_loader_workers(seconds: float, dataset: Dataset[Any] | None = None) -> Finding:
    """Whether a loader's worker process starts, and hands over a large tensor unharmed.

    Args:
        seconds: The deadline.
        dataset: Gives the tensor of ``LargeSample``; None is that.
    """
    name = "loader workers"
    cure = (
        "a larger /dev/shm, a higher `ulimit -u` (processes) and -n (files), or DataLoader(num_workers=0)"
    )
    loader = DataLoader(dataset or LargeSample(), batch_size=None, num_workers=1, timeout=seconds)
    try:
        (tensor,) = list(loader)
    except Exception as error:
        return of_error(name, error, cure)
    if not torch.equal(tensor, LargeSample()[0]):
        return Finding(name, FAILED, f"a tensor of {shown_size(_LARGE)} arrives with other values", cure)
    return Finding(name, OK, f"one starts, and hands over a tensor of {shown_size(_LARGE)}")


def check_clock(first: tuple[float, float], last: tuple[float, float], built: float) -> Finding:
    """Whether the clock of this machine runs on, without jumps, and after the software was installed.

    Args:
        first: The time of day and the monotonic clock, in seconds, when the checks began.
        last: Both at their end.
        built: When the software was installed, in seconds since the epoch.
    """
    name = "clock"
    cure = "synchronise the clock (timedatectl set-ntp true, chronyd); in a virtual machine, on its host"
    day, monotonic = (after - before for before, after in zip(first, last, strict=True))
    if monotonic < 0:
        return Finding(name, FAILED, f"the monotonic clock went back by {-monotonic:.3g} s", cure)
    if last[0] < built:
        text = f"it is {shown_seconds(built - last[0])} before the time at which paceline was installed"
        return Finding(name, FAILED, text, cure)
    if abs(day - monotonic) > _APART:
        return Finding(name, WARNING, f"the time of day jumped by {day - monotonic:+.3g} s meanwhile", cure)
    return Finding(name, OK, f"no jump in {shown_seconds(monotonic)}")


def check_clocks_agree(times: Sequence[float], strategy: str = "") -> Finding:
    """Whether the ranks' clocks agree.

    Args:
        times: Each rank's time of day right after a barrier, in seconds.
        strategy: As in ``Finding``.
    """
    apart = max(times) - min(times)
    if apart > _APART:
        ahead = max(range(len(times)), key=times.__getitem__)
        text = (
            f"rank {ahead} is {apart:.3g} s ahead of rank {min(range(len(times)), key=times.__getitem__)}"
        )
        cure = "synchronise the clocks of the machines: chronyd, or timedatectl set-ntp true"
        return Finding("ranks' clocks", WARNING, text, cure, strategy)
    return Finding("ranks' clocks", OK, f"at most {apart:.2g} s apart", strategy=strategy)


def check_threads(ranks: int, usable: int, variables: Mapping[str, str]) -> Finding:
    """Whether the threads of all ranks have a processor each.

    Args:
        ranks: On this machine.
        usable: Processors.
        variables: The environment; without OMP_NUM_THREADS paceline divides the processors among ranks.
    """
    name = "threads"
    given = {n: variables[n] for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if n in variables}
    wrong = [f"{n}={text}" for n, text in given.items() if not text.isdigit() or not int(text)]
    if wrong:
        return Finding(
            name, WARNING, f"{wrong[0]} is no number of threads", f"unset {wrong[0].split('=')[0]}"
        )
    each = max([1, *map(int, given.values())])
    needed, who = ranks * each, f"{ranks} rank{'s' * (ranks > 1)} x {each} thread{'s' * (each > 1)}"
    text = f"{who}, {usable} processor{'s' * (usable > 1)}"
    if needed > usable:
        most = max(1, usable // ranks)
        cure = f"OMP_NUM_THREADS={most}" if each > most else f"at most {usable} ranks on this machine"
        return Finding(name, WARNING, text, cure)
    return Finding(name, OK, text)
