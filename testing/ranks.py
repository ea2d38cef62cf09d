"""Starts the ranks of a check as processes, and ends all of them."""

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
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType

from ..errors import PacelineError, shown
from .trainings import SECTIONS, Layout

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


@dataclass
class Report:
    """What a rank has found so far; it is written after each section.

    Args:
        section: The section under way; "" at the end.
        wrong: By section, what is wrong.
        error: What ended the rank in that section.
    """

    section: str = ""
    wrong: dict[str, list[str]] = field(default_factory=dict)
    error: str = ""


def prepare(layout: Layout, other: Layout, seconds: float) -> None:
    """Write down what the ranks are to do, in the folder of ``layout``.

    Args:
        layout: What they train under.
        other: Has the checkpoints that are to be read, too.
        seconds: After which they end.

    Raises:
        PacelineError: for a strategy that other processes cannot import.
    """
    maker = layout.strategy
    function = maker.func if isinstance(maker, partial) else maker
    name = getattr(function, "__module__", "")
    cause: Exception | None = None
    try:
        pickled = pickle.dumps((layout, other))
    except Exception as error:
        cause = error
    if cause is not None or name == "__main__":
        raise PacelineError(
            "check_strategy: other processes cannot import this function",
            got=shown(maker),
            fix="define it at the top level of a module, or pass the name of the strategy's entry point",
        ) from cause
    module = (name, getattr(sys.modules.get(name), "__file__", None))
    order = {"module": module, "pickled": pickled, "seconds": seconds}
    (layout.folder / "order").write_bytes(pickle.dumps(order))


def run(layout: Layout, seconds: float) -> list[Report]:
    """Have processes do all sections, as ``prepare`` wrote them down, and wait for them.

    Returns:
        The report of each rank.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(layout.devices):
            processes.append(_start(layout, rank, port))
        _wait(processes, time.monotonic() + seconds + _AFTER_A_FAILURE)
    finally:
        for process in processes:
            _kill(process)
            process.wait()
    return [_report(layout.folder, rank) for rank in range(layout.devices)]


def printed(folder: Path, rank: int) -> str:
    """What a rank has printed."""
    return (folder / f"output-{rank}.txt").read_text(errors="replace")


def _start(layout: Layout, rank: int, port: int) -> subprocess.Popen[bytes]:
    variables = {n: v for n, v in os.environ.items() if not n.startswith((*_LAUNCHERS, "PACELINE_"))}
    variables["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    variables.setdefault("OMP_NUM_THREADS", "1")
    if layout.devices > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": layout.devices}
        place |= {"LOCAL_WORLD_SIZE": layout.devices, "MASTER_PORT": port}
        variables |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    code = f"from {__name__} import do_all; do_all({rank})"
    with (layout.folder / f"output-{rank}.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=layout.folder,
            start_new_session=True,
        )


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> None:
    running = list(processes)
    while running and time.monotonic() < deadline:
        for process in list(running):
            code = process.poll()
            if code is not None:
                _kill(process)
                running.remove(process)
            if code:
                deadline = min(deadline, time.monotonic() + _AFTER_A_FAILURE)
        time.sleep(0.02)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _report(folder: Path, rank: int) -> Report:
    path = folder / f"report-{rank}.json"
    if path.exists():
        return Report(**json.loads(path.read_text()))
    return Report("start")


# -- in a rank ---------------------------------------------------------------------------------


def do_all(rank: int) -> None:
    """Do all sections in this process; its report is in the working directory."""
    order = pickle.loads(Path("order").read_bytes())
    # Ends this process, with its stacks, where the one that waits for it was killed.
    faulthandler.dump_traceback_later(order["seconds"], exit=True)
    report = Report("start")
    try:
        _import(*order["module"])
        layout, other = pickle.loads(order["pickled"])
        for section in SECTIONS:
            report.section = section.__name__
            _write(report, rank)
            report.wrong[section.__name__] = section(layout, other)
    except BaseException as error:
        report.error = f"{type(error).__name__}: {error}"
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
