"""Forks the ranks of jobs from one process that has imported what each of them would import.

python rank_server.py ADDRESS   (of a Unix socket; ``ranks.py`` starts it and asks it for jobs)

A job is a connection. Its supervisor, a fork of the server, forks the ranks, reports how each ended, and
kills whatever is left of them after the deadline, or when the client closes the connection. Ranks die with
their supervisor, supervisors with the server, and the server when its standard input is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import platform
import random
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from helpers.collector import freeze_imports
from helpers.environment import rank_variables
from helpers.once import ask_once
from helpers.ports import free_port

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
PACKAGES = (
    "paceline.trainer",
    "paceline.strategies",
    "paceline.callbacks",
    "paceline.commands",
    "paceline.config",
)
IMPORTS = (
    "faulthandler",
    "multiprocessing.synchronize",
    "sklearn.datasets",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "torch.utils.tensorboard",
    "torchmetrics.classification",
)
MORE_IMPORTS = {
    "deepspeed": (
        "deepspeed",
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "psutil",
        "torch._inductor.compile_fx",
    ),
    "recipes": (
        "paceline.commands.train",
        "paceline.recipes.diffusion",
        "paceline.recipes.distill",
        "paceline.recipes.gan",
        "paceline.recipes.gpt",
        "paceline.recipes.multi_task",
        "paceline.recipes.neural_field",
        "paceline.recipes.reinforce",
        "paceline.recipes.simclr",
        "paceline.recipes.tabular",
        "paceline.recipes.vit_cifar10",
    ),
    "transformers": (
        "transformers.models.bert.modeling_bert",
        "transformers.models.llama.modeling_llama",
        "transformers.models.vit.modeling_vit",
        "peft",
        "paceline.commands.train",
        "paceline.recipes.classify_text",
        "paceline.recipes.dpo",
        "paceline.recipes.finetune_vision",
        "paceline.recipes.llm_finetune",
    ),
    "s3": ("s3fs",),
}
"""What ranks have imported too, by the name under which a job asks for it."""
LAUNCHER = "TEST_LAUNCHER"  # the variable with the launcher's process, where the ranks are forked here
PICTURES = "TEST_PICTURES"  # the variable of jobs whose fits draw curves.png
HARNESS = (__file__, runpy.run_path.__code__.co_filename)
_SECONDS_AFTER_A_FAILURE = 60  # for the other ranks, which may name it
_SECONDS_TO_GO = 60  # for what the ranks have started, which ends by itself


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def import_all(names: tuple[str, ...]) -> None:
    """Nothing of it may start a thread: a process that has some cannot be forked."""
    # deepspeed imports one of these where it is installed, and pandas the other, and each starts a thread
    without = [name for name in ("mlflow", "pyarrow") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(without))  # type: ignore[arg-type]
    for name in names:
        importlib.import_module(name)
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if "deepspeed" not in module.name or "deepspeed" in names:
                importlib.import_module(module.name)
    for name in without:
        del sys.modules[name]
    ask_once()
    freeze_imports()
    assert len(os.listdir("/proc/self/task")) == 1


def serve(address: str, ready: socket.socket | None = None) -> None:
    """Accept jobs, one connection each, until standard input is closed.

    Args:
        ready: Who gets the address once jobs are accepted.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    if ready is not None:
        tell(ready, address=address)
        ready.close()
    servers: dict[str, int] = {}  # those that have imported more
    while True:
        found, _, _ = select.select([listener, 0], [], [], 1.0)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                gone = next((name for name, process in servers.items() if process == ended[0]), None)
                if gone is not None:  # the next job that asks for it gets a new one
                    del servers[gone]
                    Path(f"{address}-{gone}").unlink(missing_ok=True)
                if ended[1]:
                    how, what = os.waitstatus_to_exitcode(ended[1]), gone or "supervisor"
                    print(f"{what} {ended[0]} ended with {how}", file=sys.stderr, flush=True)
        if 0 in found:
            for process in servers.values():
                os.waitpid(process, 0)
            os._exit(0)
        if not found:
            continue
        connection, _ = listener.accept()
        line = connection.makefile().readline()
        if not line:  # its client has been ended
            connection.close()
            continue
        order = json.loads(line)
        more = order.removeprefix("address with ") if isinstance(order, str) else ""
        its_address = f"{address}-{more}"
        if more in servers:
            tell(connection, address=its_address)
        else:
            process = os.fork()
            if process == 0:
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                listener.close()
                if more:
                    import_all(tuple(name for part in more.split("+") for name in MORE_IMPORTS[part]))
                    serve(its_address, ready=connection)
                Supervisor(connection, order).run()
                os._exit(0)
            if more:
                servers[more] = process
        connection.close()


def tell(connection: socket.socket, **values: Any) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(values).encode() + b"\n")


class Supervisor:
    """The process of one job: the parent of its ranks."""

    def __init__(self, connection: socket.socket, order: dict[str, Any]) -> None:
        self._connection, self._order = connection, order
        self._ranks: dict[int, int] = {}
        self._deadline = time.monotonic() + order["seconds"]

    def run(self) -> None:
        os.setsid()
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._wakes, wakes = os.pipe()
        for end in (self._wakes, wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        ranks = self._order["ranks"]
        port = free_port() if ranks else 0
        for rank in range(ranks or 1):
            variables = rank_variables(rank, ranks, port) if ranks else {}
            variables |= self._order["environments"][rank]
            process = os.fork()
            if process == 0:
                become_rank(self._order, rank, variables)
            self._ranks[process] = rank
        tell(self._connection, pids=list(self._ranks))
        alive, timed_out = set(self._ranks), False
        while alive:
            alive -= self._reaped()
            if alive and not self._wait(self._deadline):
                timed_out = True
                break
        left = [] if timed_out else self._left()
        self._kill_all()
        tell(self._connection, ended=True, timed_out=timed_out, left=left)

    def _wait(self, deadline: float) -> bool:
        """Until a child ends; False where the deadline comes first. Without a client all is over."""
        ready, _, _ = select.select(
            [self._wakes, self._connection], [], [], max(0, deadline - time.monotonic())
        )
        if self._connection in ready:
            self._kill_all()
            os._exit(0)
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        return bool(ready)

    def _reaped(self) -> set[int]:
        found = set()
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    break
                if process not in self._ranks:
                    continue  # an orphan of a rank
                found.add(process)
                code = os.waitstatus_to_exitcode(status)
                tell(self._connection, rank=self._ranks[process], code=code)
                patience = self._order.get("after_a_failure", _SECONDS_AFTER_A_FAILURE)
                if code and patience is not None:
                    self._deadline = min(self._deadline, time.monotonic() + patience)
        return found

    def _left(self) -> list[str]:
        """Command lines of what outlives the ranks for longer than it may."""
        deadline = time.monotonic() + _SECONDS_TO_GO
        while True:
            self._reaped()
            left = descendants(os.getpid())
            if not left or time.monotonic() > deadline:
                return [command_line(process) for process in left]
            self._wait(min(deadline, time.monotonic() + 0.1))

    def _kill_all(self) -> None:
        while left := descendants(os.getpid()):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.005)
            self._reaped()


def descendants(process: int) -> list[int]:
    """The processes below this one that are alive."""
    found = []
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "a process that has ended"


def become_rank(order: dict[str, Any], rank: int, variables: dict[str, str]) -> None:
    """Do the job in this process and end as an interpreter does, without freeing each object."""
    code, interrupted = 1, False
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.closerange(3, 256)
        enter_namespaces(order.get("namespaces_of"))
        redirect(*order.get("streams") or [f"{order[name]}-{rank}.txt" for name in ("stdout", "stderr")])
        os.environ.clear()
        os.environ.update(order["environment"] | variables)
        if "PACELINE_LAUNCHER" in os.environ:  # ranks die with the process that started them
            os.environ |= {
                LAUNCHER: os.environ["PACELINE_LAUNCHER"],
                "PACELINE_LAUNCHER": str(os.getppid()),
            }
        if PICTURES not in os.environ:
            sys.modules["paceline.callbacks.pictures.curves"].start_drawing = lambda *arguments: None
        os.chdir(order["folder"])
        tempfile.tempdir = None  # the server's; TMPDIR may name another
        random.seed()
        sys.modules["numpy"].random.seed()
        script = order["script"]
        sys.argv[:] = [script, *order["arguments"]]
        if python := order.get("python"):  # what the launcher is to start ranks with
            sys.executable = python
            sys.modules["paceline.strategies.launch.launcher"]._FOLDER = order["folder"]
            rendezvous = importlib.import_module("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
            # It walks the stack, 5,000 modules for each frame, to name an event that nothing records.
            rendezvous.get_method_name = lambda depth=2: "not asked for"  # type: ignore[attr-defined]
            sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        if order["function"] is None:  # the command that does the same, for what starts it again
            sys.orig_argv[:] = [sys.executable, *["-m"] * order["is_module"], *sys.argv]
        if order["is_module"]:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        elif order["function"] is not None:
            module, _, name = order["function"].partition(":")
            getattr(importlib.import_module(module), name)(*order["arguments"])
        else:
            sys.path.insert(0, os.path.dirname(script))
            runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in HARNESS:
            trace = trace.tb_next  # a script's own traceback begins in the script
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)


def enter_namespaces(process: int | None) -> None:
    """Be on the host of a process: where its network, its host name and its mounts are (``hosts.py``)."""
    for kind in ("net", "uts", "mnt") if process else ():
        theirs = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
        if os.fstat(theirs).st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(theirs, 0):
                raise OSError(ctypes.get_errno(), f"the fork cannot enter the namespace {kind}")
        os.close(theirs)
    platform._uname_cache = None  # type: ignore[attr-defined]  # it has the host's name


def redirect(stdout: str, stderr: str) -> None:
    """The three standard streams: nothing, and two files."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for number, descriptor in enumerate(
        [os.open(os.devnull, os.O_RDONLY), os.open(stdout, flags, 0o644), os.open(stderr, flags, 0o644)]
    ):
        os.dup2(descriptor, number)
        os.close(descriptor)


if __name__ == "__main__":
    import_all(IMPORTS)
    os.setsid()
    serve(sys.argv[1])
