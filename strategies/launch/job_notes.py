"""Notes between ranks and their launcher, through a folder named in the environment of both."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import PacelineError, short_tracebacks

JOB = "PACELINE_JOB"
"""Names the folder, and the variable with its path."""
LAUNCHER = "PACELINE_LAUNCHER"
"""The variable with the launcher's process id."""


_SHOWN = 120
_AGENT = "TORCHELASTIC_RUN_ID"
_MICRO_BATCH = "micro-batch"
_EARLIER = "earlier-"


@dataclass(frozen=True)
class Failure:
    """How a rank failed.

    Args:
        time: When, in nanoseconds: what fails after it may fail because of it.
        what: The error's last line.
        message: The error as it is to be printed; "" while that is not known.
        mistake: Whether it would fail in the same way again.
        code: Of a mistake, its kind, where it has a page.
    """

    time: int
    what: str = ""
    message: str = ""
    mistake: bool = False
    code: str | None = None


def output_files(job: Path, local_rank: int) -> tuple[Path, Path]:
    """Where a rank's standard output and standard error go before its run has a log."""
    folder = job / "output" / "run" / "attempt_0" / str(local_rank)  # as torch's agent calls them
    return folder / "stdout.log", folder / "stderr.log"


def job_folder() -> Path | None:
    """The folder; None where no launcher of ours started this process."""
    job = os.environ.get(JOB)
    return Path(job) if job is not None and os.path.isdir(job) else None


def _rank() -> str:
    return os.environ.get("RANK", "0")


# -- a rank's notes -----------------------------------------------------------------------------


def is_supervised() -> bool:
    """Whether a launcher watches this process to which any exit code but 0 is a failure."""
    return _AGENT in os.environ or JOB in os.environ


def launcher_requeues() -> bool:
    """Whether a launcher of ours outlives this rank, and puts a job of SLURM back into the queue."""
    return _AGENT in os.environ and job_folder() is not None


def die_with_launcher() -> None:
    """Let the kernel end this process when the launcher that started it is gone (Linux).

    The variable that names the launcher is inherited: in a program that a rank has started nothing is done.
    """
    launcher = os.environ.get(LAUNCHER)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    if os.getppid() == int(launcher):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != int(launcher) and not is_alive(int(launcher)):  # gone before that
        print(f"the launcher, process {launcher}, is gone: this rank ends", file=sys.stderr, flush=True)
        os._exit(137)


def is_alive(process: int) -> bool:
    """Whether a process of this machine exists and has not ended."""
    import psutil  # here: no rank that its launcher started asks

    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, OverflowError):
        return False


def note_trained() -> None:
    """Note for the launcher that steps were done."""
    job = job_folder()
    if job is not None:
        (job / "trained").touch()


def note_stop(signal_number: int) -> None:
    """Note for the launcher that this job ended in order because of a signal."""
    job = job_folder()
    if job is not None:
        (job / f"stopped-{_rank()}").write_text(str(signal_number))


def note_failure(error: BaseException, message: str = "") -> bool:
    """Note for the launcher that this rank has failed.

    Args:
        error: What ended this rank.
        message: The error as it is to be printed.

    Returns:
        Whether there is a launcher of ours that reads the note.
    """
    job = job_folder()
    if job is None:
        return False
    earlier = failures(job).get(int(_rank()))
    failure = Failure(
        time=earlier.time if earlier else time.time_ns(),
        what=f"{type(error).__name__}: {error}".splitlines()[0][:_SHOWN],
        message=message,
        mistake=isinstance(error, PacelineError),
        code=error.code if isinstance(error, PacelineError) else None,
    )
    (job / f"failed-{_rank()}").write_text(json.dumps(asdict(failure)))
    return True


@contextmanager
def uncaught_errors_shortened() -> Iterator[None]:
    """Print what nobody catches with the user's frames only; a rank lets its launcher print it, last.

    A rank's later errors are its launcher's too: there the hook stays.
    """
    with short_tracebacks(note_failure, stays=job_folder() is not None):
        yield


def note_verdict(text: str) -> bool:
    """Tell the launcher why all ranks are ended: what it prints last. Whether there is a launcher."""
    job = job_folder()
    if job is not None:
        (job / "verdict").write_text(text)
    return job is not None


def is_ended() -> bool:
    """Whether the launcher ends all ranks, because one has failed."""
    job = job_folder()
    return job is not None and (job / "end").exists()


def note_run(fit: int, run: Path) -> None:
    """Tell the next attempt in which folder the script's n-th ``fit`` writes.

    On each machine: the one with rank 0 may be another one then.
    """
    job = job_folder()
    if job is not None and os.environ.get("LOCAL_RANK") == "0":
        (job / f"run-{fit}").write_text(str(run.resolve()))


def note_micro_batch(fit: int, size: int) -> bool:
    """Have the ranks started again, the script's n-th ``fit`` with micro-batches of this size at most.

    Args:
        fit: Which ``fit`` of the script it is, from 1.
        size: In samples.

    Returns:
        Whether there is a launcher of ours, which does so.
    """
    job = job_folder()
    if job is None or _AGENT not in os.environ:  # forked ranks are not started again
        return False
    (job / f"{_MICRO_BATCH}-{fit}-{_rank()}").write_text(str(size))
    return True


def noted_micro_batch(fit: int) -> int | None:
    """The smallest size that a rank of this machine has noted for the n-th ``fit``; None for none."""
    job = job_folder()
    return None if job is None else min(_sizes(job, f"{fit}-*"), default=None)


def restarts() -> int:
    """How often the ranks were started again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def interrupted_run(fit: int) -> Path | None:
    """The run that the n-th ``fit`` had under way in an earlier attempt on this machine."""
    job = job_folder()
    note = None if job is None else job / f"{_EARLIER}run-{fit}"
    return Path(note.read_text()) if note is not None and note.exists() else None


def write_output_to(path: Path) -> None:
    """From now on, what this process prints goes to ``path``, and what it printed so far too.

    For ranks whose output the launcher keeps off the console; others' is left alone.
    """
    job, local_rank = job_folder(), os.environ.get("LOCAL_RANK", "0")
    if job is None or local_rank == "0":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab", buffering=0) as file:
        for name in ("stdout.log", "stderr.log"):
            for earlier in sorted(job.glob(f"output/*/attempt_*/{local_rank}/{name}")):
                file.write(earlier.read_bytes())
                os.truncate(earlier, 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    link = job / f"rank-{local_rank}.log"
    link.unlink(missing_ok=True)
    link.symlink_to(path.resolve())


# -- the launcher reads ------------------------------------------------------------------------


def has_trained(job: Path) -> bool:
    """Whether a rank has done a step, in any attempt."""
    return (job / "trained").exists()


def stops(job: Path) -> list[int]:
    """The signals that ranks have stopped for in order."""
    return [int(note.read_text()) for note in sorted(job.glob("stopped-*"))]


def failures(job: Path) -> dict[int, Failure]:
    """The failures that ranks noted, by rank."""
    found = {}
    for note in job.glob("failed-*"):
        with suppress(ValueError):  # half written by a rank that was killed
            found[int(note.name.partition("-")[2])] = Failure(**json.loads(note.read_text()))
    return found


def micro_batches(job: Path) -> list[int]:
    """The sizes of micro-batches that ranks have noted: another list asks for another attempt."""
    return _sizes(job, "*")


def _sizes(job: Path, which: str) -> list[int]:
    return [int(note.read_text()) for note in sorted(job.glob(f"{_MICRO_BATCH}-{which}"))]


def verdict(job: Path) -> str:
    """What ``note_verdict`` wrote; "" for nothing."""
    note = job / "verdict"
    return note.read_text() if note.exists() else ""


def last_output(job: Path, local_rank: int, lines: int) -> list[str]:
    """The last lines a rank wrote that does not write where its launcher does."""
    written = job / f"rank-{local_rank}.log"
    if not written.exists():
        found = sorted(job.glob(f"output/*/attempt_*/{local_rank}/stderr.log"))
        written = found[-1] if found else written
    if not local_rank or not written.is_file():
        return []
    return written.read_text(errors="replace").splitlines()[-lines:]


def note_end(job: Path) -> None:
    """Tell the ranks that the signal that comes now ends them, because one has failed."""
    with suppress(OSError):
        (job / "end").touch()


def forget(job: Path) -> None:
    """Another attempt begins: the earlier one's runs are kept for it, other notes are removed."""
    for note in [p for kind in ("failed-*", "stopped-*", "verdict", "end") for p in job.glob(kind)]:
        note.unlink()
    shutil.rmtree(job / "stacks", ignore_errors=True)  # trainer/faults/thread_stacks.py
    for note in job.glob("run-*"):
        note.replace(job / f"{_EARLIER}{note.name}")
