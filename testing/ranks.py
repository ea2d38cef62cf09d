"""Starts the ranks of a check as processes, and ends all of them. Also for ``paceline doctor``."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import PacelineError, shown
from ..strategies.launch.job_notes import LAUNCHER, die_with_launcher

Work = Mapping[str, Callable[[], Any]]
"""What each rank does, in this order, by the name of the section; the results are plain data."""

_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "PET_",
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "MPI_",
)
_AFTER_A_FAILURE = 10.0  # seconds that the other ranks have to end too
_START = 60.0  # seconds to import everything on a busy machine, where each section has a deadline


@dataclass
class Report:
    """What a rank has found so far; it is written after each section.

    Args:
        section: The section under way; "" at the end.
        found: By section, what it returned.
        error: What ended the rank in that section.
        at: When that was, in seconds since the epoch.
        code: Its exit code; None where it had to be killed.
    """

    section: str = ""
    found: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    at: float = 0.0
    code: int | None = None


def prepare(folder: Path, work: Work, makers: Iterable[Any], seconds: float, *, each: bool = False) -> None:
    """Write down what the ranks are to do.

    Args:
        folder: Takes all that they write.
        work: What each of them does.
        makers: The strategies in it: other processes import the modules of their functions.
        seconds: After which they end.
        each: The seconds are those of each section.

    Raises:
        PacelineError: for a strategy that other processes cannot import.
    """
    functions = [maker.func if isinstance(maker, partial) else maker for maker in makers]
    modules = [getattr(function, "__module__", "") for function in functions]
    cause: Exception | None = None
    try:
        pickled = pickle.dumps(dict(work))
    except Exception as error:
        cause = error
    if cause is not None or "__main__" in modules:
        wrong = functions[modules.index("__main__")] if "__main__" in modules else functions[-1]
        raise PacelineError(
            "check_strategy: other processes cannot import this function",
            code="wrong-object",
            got=shown(wrong),
            fix="define it at the top level of a module, or pass the name of the strategy's entry point",
        ) from cause
    places = [(name, getattr(sys.modules.get(name), "__file__", None)) for name in dict.fromkeys(modules)]
    order = {"modules": places, "pickled": pickled, "seconds": seconds, "each": each}
    (folder / "order").write_bytes(pickle.dumps(order))


def run(
    folder: Path,
    ranks: int,
    seconds: float,
    progress: Callable[[list[Report]], None] | None = None,
) -> list[Report]:
    """Have processes do their work, as ``prepare`` wrote it down, and wait for them.

    Args:
        folder: As ``prepare`` took it.
        ranks: How many.
        seconds: After which all are killed.
        progress: Called now and then with what the ranks have done so far; the seconds are then those in
            which one of them must have got further.

    Returns:
        The report of each rank.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            processes.append(_start(folder, rank, ranks, port))
        _wait(processes, folder, seconds + _AFTER_A_FAILURE, progress)
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            _kill(process)
            process.wait()
    return [_report(folder, rank, codes[rank]) for rank in range(ranks)]


def outside_a_launch() -> dict[str, str]:
    """This process's environment without what a launcher sets for its ranks, and without our variables."""
    return {n: v for n, v in os.environ.items() if not n.startswith((*_LAUNCHERS, "PACELINE_"))}


def printed(folder: Path, rank: int) -> str:
    """What a rank has printed."""
    return (folder / f"output-{rank}.txt").read_text(errors="replace")


def _start(folder: Path, rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
    variables = outside_a_launch() | {LAUNCHER: str(os.getpid())}
    variables["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    variables.setdefault("OMP_NUM_THREADS", "1")
    if ranks > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        place |= {"LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        variables |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    code = f"from {__name__} import do_all; do_all({rank})"
    with (folder / f"output-{rank}.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=folder,
            start_new_session=True,
        )


def _wait(
    processes: list[subprocess.Popen[bytes]],
    folder: Path,
    seconds: float,
    progress: Callable[[list[Report]], None] | None,
) -> None:
    running, failed = list(processes), False
    deadline = time.monotonic() + seconds + (_START if progress is not None else 0.0)
    seen: list[Report] = []
    while running and time.monotonic() < deadline:
        for process in list(running):
            code = process.poll()
            if code is not None:
                _kill(process)
                running.remove(process)
            if code:
                deadline, failed = min(deadline, time.monotonic() + _AFTER_A_FAILURE), True
        time.sleep(0.02)
        if progress is not None and not failed:
            reports = [_report(folder, rank, None) for rank in range(len(processes))]
            if reports != seen:
                seen, deadline = reports, time.monotonic() + seconds
                progress(reports)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _report(folder: Path, rank: int, code: int | None) -> Report:
    path = folder / f"report-{rank}.json"
    report = Report(**json.loads(path.read_text())) if path.exists() else Report("start")
    report.code = code
    return report


# -- in a rank ---------------------------------------------------------------------------------


def do_all(rank: int) -> None:
    """Do all sections in this process; its report is in the working directory."""
    die_with_launcher()
    order = pickle.loads(Path("order").read_bytes())
    # Ends this process, with its stacks, where the one that waits for it was killed.
    start = _START if order["each"] else 0.0
    faulthandler.dump_traceback_later(order["seconds"] + start, exit=True)
    report = Report("start")
    try:
        for name, file in order["modules"]:
            _import(name, file)
        for section, work in pickle.loads(order["pickled"]).items():
            report.section = section
            _write(report, rank)
            if order["each"]:
                faulthandler.dump_traceback_later(order["seconds"], exit=True)
            report.found[section] = work()
    except BaseException as error:
        report.error, report.at = f"{type(error).__name__}: {error}", time.time()
        _write(report, rank)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the other ranks may be inside a collective
    report.section = ""
    _write(report, rank)


def _write(report: Report, rank: int) -> None:
    path = Path(f"report-{rank}.json")
    path.with_suffix(".part").write_text(json.dumps(asdict(report)))
    path.with_suffix(".part").replace(path)


def _import(name: str, file: str | None) -> None:
    """Load a module from its file where its name does not lead there: pytest may have named it."""
    if file is None:
        return
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin == file:
            return
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is not None and spec.loader is not None:
        module: ModuleType = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
