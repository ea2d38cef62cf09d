"""Runs job scripts on ranks that are forked from one process for each worker of pytest.

An interpreter that imports torch and the package takes three CPU seconds, a fork some milliseconds. Tests
whose subject is how processes are launched start real ones: ``processes.py``.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .environment import MODULE_MARK, clean_environment
from .jobs import load_job

SECONDS = 240  # for a job, where its test says nothing else
_START = 120  # for the server's imports on a machine that is busy
_numbers = itertools.count()


@dataclass
class Outcome:
    """How a job ended.

    Attributes:
        codes: The ranks' exit codes, a signal's number below 0; None for a rank that had to be killed.
        timed_out: Whether the deadline came first.
        left: Command lines of what outlived the ranks and did not end by itself.
        printed: What each rank wrote to its standard output and to its standard error.
    """

    codes: list[int | None]
    timed_out: bool
    left: list[str]
    printed: list[tuple[str, str]]

    @property
    def stdout(self) -> str:
        """What all ranks wrote to it, one after another."""
        return "".join(out for out, _ in self.printed)

    @property
    def stderr(self) -> str:
        """What all ranks wrote to it, one after another."""
        return "".join(err for _, err in self.printed)

    @property
    def output(self) -> str:
        """The end of what was printed, for the message of a test that fails."""
        ended = f"exit codes {self.codes}{', at the deadline' * self.timed_out}"
        return "\n".join([ended, *(f"{out[-2000:]}\n{err[-3000:]}" for out, err in self.printed)])


class Job:
    """A job under way; its processes are killed at its deadline, and when this object is closed.

    Args:
        script: A file, or the name of a module to run as ``python -m`` does.
        ranks: How many; 1 is a process that no launcher has given a place.
        folder: What the ranks are started in.
        seconds: The deadline for all of them.
        function: Call this one, "module:name", with the arguments instead of running the script.
        after_a_failure: Seconds that the other ranks have when one has failed; None for no limit.
        environment: More variables for all ranks, or for each of them.
        deepspeed: Whether the ranks have imported it; by default where the script names it.
        transformers: Whether the ranks have imported it, with peft and the recipes that use it.
        launches: The script starts ranks, which are forked too; the launcher is the one of every job.
        s3: Whether the ranks have imported the client of object stores.
        recipes: Whether the ranks have imported the other recipes and what those use.
    """

    def __init__(
        self,
        script: Path | str,
        ranks: int,
        *arguments: Any,
        folder: Path,
        seconds: float = SECONDS,
        function: str | None = None,
        after_a_failure: float | None = 60,
        environment: dict[str, str] | list[dict[str, str]] | None = None,
        deepspeed: bool | None = None,
        transformers: bool = False,
        launches: bool = False,
        s3: bool = False,
        recipes: bool = False,
    ) -> None:
        number = f"{os.getpid()}-{next(_numbers)}"
        self.folder, self.ranks = folder, ranks
        self._codes: list[int | None] = [None] * ranks
        self._ended: dict[str, Any] | None = None
        if deepspeed is None:
            source = script.read_text() if isinstance(script, Path) else ""
            deepspeed = "deepspeed" in (source + repr(arguments)).lower()
        if function is None:
            arguments = tuple(map(str, arguments))
        each = environment if isinstance(environment, list) else [environment or {}] * ranks
        asked = {"deepspeed": deepspeed, "recipes": recipes, "transformers": transformers, "s3": s3}
        more = [name for name, wanted in asked.items() if wanted]
        self._connection, outputs = _connected("+".join(more))
        self._streams = [outputs / f"{name}-{number}" for name in ("stdout", "stderr")]
        order = {
            "script": str(script),
            "is_module": isinstance(script, str),
            "function": function,
            "arguments": arguments,
            "ranks": 0 if ranks == 1 else ranks,
            "folder": str(folder),
            "environment": clean_environment(),
            "environments": each,
            "stdout": str(self._streams[0]),
            "stderr": str(self._streams[1]),
            "seconds": seconds,
            "after_a_failure": after_a_failure,
            "python": forked_python("+".join(more)) if launches else None,
        }
        self._connection.sendall(json.dumps(order).encode() + b"\n")
        self._patience = seconds + 60
        self._answers = self._connection.makefile()
        self.pids: list[int] = self._answer()["pids"]

    def _answer(self) -> dict[str, Any]:
        self._connection.settimeout(self._patience)
        line = self._answers.readline()
        if not line:
            time.sleep(2)  # the server says within a second how it ended
            raise AssertionError(f"the supervisor of the ranks has ended\n{self._log()}\n{self.printed()}")
        return json.loads(line)

    def _log(self) -> str:
        log = self._streams[0].with_name(_LOG)
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""

    def _take(self) -> None:
        found = self._answer()
        if "rank" in found:
            self._codes[found["rank"]] = found["code"]
        else:
            self._ended = found

    def code(self, rank: int = 0) -> int | None:
        """A rank's exit code once it has ended; None where the job came to its deadline."""
        while self._codes[rank] is None and self._ended is None:
            self._take()
        return self._codes[rank]

    def wait(self) -> Outcome:
        """How it ended, once it has."""
        while self._ended is None:
            self._take()
        self.close()
        ended = self._ended
        return Outcome(self._codes, ended["timed_out"], ended["left"], self._printed())

    def _printed(self) -> list[tuple[str, str]]:
        def text(stream: Path, rank: int) -> str:
            path = stream.with_name(f"{stream.name}-{rank}.txt")
            return path.read_text(errors="replace") if path.exists() else ""

        stdout, stderr = self._streams
        return [(text(stdout, rank), text(stderr, rank)) for rank in range(self.ranks)]

    def errors(self, rank: int = 0) -> str:
        """What a rank has written to its standard error so far."""
        return self._printed()[rank][1]

    def printed(self) -> str:
        """The end of what each rank has printed so far."""
        return "\n".join(f"{out[-2000:]}\n{err[-3000:]}" for out, err in self._printed())

    def close(self) -> None:
        """Kill what is left of it."""
        self._answers.close()
        self._connection.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def run_strategies(request: Any, script: Path, every: Sequence[str], usual: Sequence[str]) -> Path:
    """Run a job of two ranks for the usual strategies, under ``--soak`` for every one. Its folder.

    Args:
        request: pytest's, of a fixture.
        script: Takes the folder and the strategies.
        every: All strategies it has tests for.
        usual: Those that are run by default.
    """
    folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("ranks")
    strategies = every if request.config.getoption("--soak") else usual
    run_ranks(script, 2, folder, *strategies, folder=folder)
    return folder


def run_ranks(
    script: Path | str, ranks: int, *arguments: Any, folder: Path, check: bool = True, **options: Any
) -> Outcome:
    """Run a job to its end; see ``Job`` for the arguments.

    Args:
        check: All ranks must end with exit code 0.
    """
    with Job(script, ranks, *arguments, folder=folder, **options) as job:
        outcome = job.wait()
    assert outcome.left == [], f"these outlived the ranks: {outcome.left}"
    assert not check or outcome.codes == [0] * ranks, outcome.output
    return outcome


# -- one function on two ranks, case by case -----------------------------------------------------


def run_cases(
    script: Path,
    folder: Path,
    cases: dict[str, Any],
    *,
    one_pair: bool,
    function: str = "on_rank",
    seconds: float = SECONDS,
    ranks: int = 2,
) -> dict[str, list[dict[str, Any]]]:
    """By name of the case: what ``function(folder, **case)`` returned on each rank.

    Args:
        one_pair: The same ranks do all of the cases; else each case has its own ones, which it may end.
        ranks: How many.

    Returns:
        With ``"output"``, what the rank printed.
    """
    for name in cases:
        (folder / _folder_name(name)).mkdir()
    parts = [cases] if one_pair else [{name: case} for name, case in cases.items()]
    for part in parts:
        arguments = [str(script), function, part]
        options = {"function": f"{__name__}:_do_cases", "check": False, "seconds": seconds}
        run_ranks(script, ranks, *arguments, folder=folder, **options)
    return {name: [_found(folder / _folder_name(name), rank) for rank in range(ranks)] for name in cases}


def _folder_name(case: str) -> str:
    return case.replace(" ", "-")


def _found(folder: Path, rank: int) -> dict[str, Any]:
    printed = (folder / f"output-{rank}").read_text()
    path = folder / f"found-{rank}"
    assert path.exists(), printed[-4000:]
    return json.loads(path.read_text()) | {"output": printed}


def _do_cases(script: str, function: str, cases: dict[str, Any]) -> None:
    """What each rank does of ``run_cases``."""
    rank, base = int(os.environ["RANK"]), Path.cwd()
    work = getattr(load_job(Path(script)), function)
    for name, case in cases.items():
        place = base / _folder_name(name)
        output = os.open(place / f"output-{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.chdir(place)
        try:
            (place / f"found-{rank}").write_text(json.dumps(work(place, **case)))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.flush()


# -- the server ----------------------------------------------------------------------------------


class _Server:
    """The server of this run of the tests; started by the first that needs it.

    Under xdist it is one for all workers: it lies in the folder that ``share_server`` made, and ends with
    the process that called it.
    """

    def __init__(self) -> None:
        self._shared = os.environ.get(_SHARED)
        self.folder = self._shared or tempfile.mkdtemp(prefix="ranks-")
        self._addresses = {"": f"{self.folder}/server"}
        self._process: subprocess.Popen[bytes] | None = None
        if self._shared is None:
            self._start(subprocess.PIPE)
            return
        with open(f"{self.folder}/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(self._addresses[""]):
                with open(f"{self.folder}/{_ALIVE}", "rb", buffering=0) as ends_with_the_tests:
                    self._start(ends_with_the_tests)

    def _start(self, stdin: Any) -> None:
        environment = clean_environment()
        environment.pop(MODULE_MARK, None)  # it outlives the module that starts it
        with open(f"{self.folder}/{_LOG}", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("rank_server.py")), self._addresses[""]],
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
            )
        deadline = time.monotonic() + _START
        while not os.path.exists(self._addresses[""]):
            assert self._process.poll() is None, f"the server could not start: {self.folder}/{_LOG}"
            assert time.monotonic() < deadline, "the server of ranks does not start"
            time.sleep(0.01)

    def address(self, more: str) -> str:
        if more and not os.path.exists(self._addresses.get(more, "")):  # not asked for yet, or it has ended
            with self.connected("") as connection:
                connection.sendall(json.dumps(f"address with {more}").encode() + b"\n")
                answer = connection.makefile().readline()
            if not answer:
                raise ConnectionRefusedError(f"the server with {more} ended before it was ready")
            self._addresses[more] = json.loads(answer)["address"]
        return self._addresses[more]

    def connected(self, more: str) -> socket.socket:
        deadline = time.monotonic() + _START
        while True:  # the socket exists once the server has bound it, and refuses until the server listens
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_START)
            try:
                connection.connect(self.address(more))
                return connection
            except (ConnectionRefusedError, FileNotFoundError):
                connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def is_alive(self) -> bool:
        return self._process is None or self._process.poll() is None

    def close(self) -> None:
        if self._shared is not None:
            return
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)


_SHARED = "TEST_RANK_SERVER"  # the variable with the folder of a server that several processes use
_LOG = "server.log"
_ALIVE = "alive"  # a pipe in it, of which the process that made the folder holds the other end
_servers: list[_Server] = []
_lock = threading.Lock()


def share_server() -> Callable[[], None]:
    """Have the processes that are started from here on use one server; the function ends it."""
    folder = tempfile.mkdtemp(prefix="ranks-")
    os.mkfifo(f"{folder}/{_ALIVE}")
    held = os.open(f"{folder}/{_ALIVE}", os.O_RDWR | os.O_CLOEXEC)
    os.environ[_SHARED] = folder

    def end() -> None:
        os.environ.pop(_SHARED, None)
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)

    return end


def _connected(more: str) -> tuple[socket.socket, Path]:
    """A connection to the server for one job, and the folder for what its ranks print.

    Args:
        more: Names of ``MORE_IMPORTS`` with "+" between them.
    """
    with _lock:
        return _server().connected(more), Path(_server().folder)


def _server() -> _Server:
    if _servers and not _servers[0].is_alive():
        _servers.clear()
    if not _servers:
        _servers.append(_Server())
    return _servers[0]


def forked_python(more: str = "") -> str:
    """A program to use as an interpreter, which runs scripts in forks of the server.

    Args:
        more: Names of ``MORE_IMPORTS`` with "+" between them.
    """
    with _lock:
        server = _server()
        path, address = Path(server.folder, f"python-{more}"), server.address(more)
        if not path.exists():
            source = Path(__file__).with_name("forked_python.py").read_text()
            staged = path.with_name(f"{path.name}-{os.getpid()}")
            call = f"main({sys.executable!r}, {address!r}, sys.argv[1:])"
            staged.write_text(f"#!{sys.executable} -IS\n{source}\n\n{call}\n")
            staged.chmod(0o755)
            staged.replace(path)
    return str(path)


def close_server() -> None:
    """End this process's server, if it has one."""
    while _servers:
        _servers.pop().close()
