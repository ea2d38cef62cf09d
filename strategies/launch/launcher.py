"""Starting a script again as the ranks of a job, through torch's elastic agent, and how ranks end."""

from __future__ import annotations

import argparse
import builtins
import logging
import os
import signal
import socket
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any, NoReturn

from ...errors import PacelineError
from .job_notes import JOB, LAUNCHER, Failure, failures, forget, last_output, note_end, stops, verdict

_SHUTDOWN_SECONDS = 300  # a rank that was told to stop saves first
_TAIL = 40
_FAILURE_SECONDS = 5  # the others, when a rank has failed: what they do cannot be finished
_FOLDER = os.getcwd()  # the script may be somewhere else by the time of fit


# A rank dies with its launcher from its first moment on: the request outlives exec.
_GUARD = """import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): os._exit(137)
os.execvp(sys.argv[2], sys.argv[2:])"""


def why_not_relaunch() -> str | None:
    """Why this program cannot be started again from its top; None where it can."""
    main = sys.modules.get("__main__")
    if hasattr(builtins, "__IPYTHON__") or "ipykernel" in sys.modules:
        return "a notebook runs in one process"
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return "an interactive session runs in one process"
    if "PYTEST_CURRENT_TEST" in os.environ and "_pytest" in sys.modules:
        return "pytest would be started again in each rank"
    file = getattr(main, "__file__", None)
    if (file is None or not os.path.exists(file)) and sys.argv[:1] != ["-c"]:
        return "this program does not come from a file"
    return None


def start_ranks(count: int, num_nodes: int = 1, max_restarts: int = 0) -> NoReturn:
    """Run this very command as ``count`` ranks here; ends this process with the job's exit code.

    The ranks run the script from its top, with its arguments and in its folder. On several machines the
    rendezvous comes from torchrun's variables (``PET_RDZV_ENDPOINT`` and its like).

    Args:
        max_restarts: How often all ranks are started again when one has failed.

    Raises:
        SystemExit: always; 0 when all ranks ended well, 128 + n when signal n stopped the job in order.
    """
    _check_nodes(num_nodes)
    os.chdir(_FOLDER)
    # The program is not torchrun's to start: the interpreter, its options and ours are kept as given.
    options = [f"--nproc-per-node={count}", f"--nnodes={num_nodes}", f"--max-restarts={max_restarts}"]
    options.append("--no-python")
    sys.exit(launch([*options, sys.executable, "-u", *sys.orig_argv[1:]]))


def launch(arguments: list[str]) -> int:
    """Start ranks as ``torchrun`` does with these arguments; the job's exit code.

    ``--nproc`` is short for ``--nproc-per-node``. Without a rendezvous one is made on this machine. The
    first rank here writes where this process does, the others into their run's log.
    """
    from torch.distributed.run import config_from_args, get_args_parser

    parser = get_args_parser()
    parser.add_argument("--nproc", dest="nproc_per_node", default=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    alone = parsed.nnodes in ("1", "1:1") and parsed.rdzv_backend == "static" and not parsed.rdzv_endpoint
    if parsed.standalone or alone:
        parsed.rdzv_backend, parsed.rdzv_endpoint = "c10d", "localhost:0"
        parsed.rdzv_id = str(uuid.uuid4())
    count = parsed.nproc_per_node
    if count.isdigit() and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(max(1, _processors() // max(int(count), 1)))
    config, program, rest = config_from_args(parsed)
    if sys.platform.startswith("linux") and isinstance(program, str):
        rest = ["-ISc", _GUARD, str(os.getpid()), program, *rest]
        program = sys.executable
    config.shutdown_timeout = _SHUTDOWN_SECONDS
    with tempfile.TemporaryDirectory(prefix="paceline-") as job:
        if not (parsed.log_dir or parsed.redirects != "0" or parsed.tee != "0"):
            config.logs_specs = _logs(Path(job), config.nproc_per_node)
        return _run(config, program, rest, Path(job))


def _check_nodes(num_nodes: int) -> None:
    told = os.environ.get("PET_NNODES", str(num_nodes))
    least, _, most = told.partition(":")
    if least != str(num_nodes) or (most or least) != least:
        raise PacelineError(
            "num_nodes does not match PET_NNODES",
            got=f"num_nodes={num_nodes}, PET_NNODES={told}",
            fix=f"Trainer(num_nodes={told}), or start the script with torchrun",
        )
    if num_nodes > 1 and not {"PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"} & set(os.environ):
        raise PacelineError(
            f"{num_nodes} machines were asked for, and no rendezvous is configured",
            got=f"num_nodes={num_nodes}",
            fix="on each of them: paceline launch --nnodes 2 --nproc 8 --rdzv-backend c10d "
            "--rdzv-endpoint HOST:29500 train.py, or srun",
        )


def _logs(job: Path, count: int) -> Any:
    """Rank 0 of this machine writes where we do; what the others write goes to files."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    return DefaultLogsSpecs(log_dir=str(job / "output"), redirects=dict.fromkeys(range(1, count), Std.ALL))


def _run(config: Any, program: Any, arguments: list[str], job: Path) -> int:
    from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import api

    os.environ[JOB], os.environ[LAUNCHER] = str(job), str(os.getpid())
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for name in [n for n in logging.root.manager.loggerDict if n.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters we tell ourselves

    teller = _Teller(job, config)

    class Agent(api.LocalElasticAgent):
        _held: socket.socket | None = None

        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if result.is_failed():
                teller.failures = result.failures
                if any(failure.mistake for failure in failures(job).values()):
                    self._remaining_restarts = 0  # it would fail in the same way again
            return result

        def _restart_workers(self, worker_group: Any) -> None:
            teller.tell(
                f"starting again, {config.max_restarts - self._remaining_restarts} of at most "
                f"{config.max_restarts} times"
            )
            super()._restart_workers(worker_group)  # type: ignore[no-untyped-call]

        def _initialize_workers(self, worker_group: Any) -> None:
            forget(job)
            if config.max_nodes == 1:  # the agent's own choice may be taken before rank 0 listens there
                if self._held is not None:
                    self._held.close()
                self._held = _hold_port()
                worker_group.spec.master_port = self._held.getsockname()[1]
            super()._initialize_workers(worker_group)

        def _exit_barrier(self) -> None:
            if stops(job):  # another machine's agent, which took the signal, never comes
                self._exit_barrier_timeout = _FAILURE_SECONDS
            super()._exit_barrier()  # type: ignore[no-untyped-call]

    api.LocalElasticAgent = Agent  # type: ignore[misc]  # this process is the launcher and nothing else
    close = PContext.close

    def close_for(self: Any, death_sig: Any = None, timeout: int = _FAILURE_SECONDS) -> None:
        if death_sig is None:  # not for a signal to this process
            note_end(job)
            handlers = getattr(self, "subprocess_handlers", {})
            teller.dead = {rank for rank, one in handlers.items() if one.proc.poll() is not None}
        close(self, death_sig, timeout)

    PContext.close = close_for  # type: ignore[method-assign]
    try:
        api.launch_agent(config, program, arguments)
    except ChildFailedError as error:
        teller.failures = error.failures
        return teller.tell()
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 128 + stops(job)[0] if stops(job) else 0


def _hold_port() -> socket.socket:
    """A free port that nobody else is given: bound, but not listening, so that rank 0 may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


class _Teller:
    """Says how the ranks of an attempt ended, and what the one that failed first has to say.

    Attributes:
        failures: What the agent knows of the ranks that failed, by rank.
        dead: Local ranks that had ended before this process began to end the others.
    """

    def __init__(self, job: Path, config: Any) -> None:
        self._job = job
        self._known = range(config.nproc_per_node) if config.max_nodes == 1 else ()
        self.failures: dict[int, Any] = {}
        self.dead: set[int] = set()

    def tell(self, then: str = "") -> int:
        """Print it; the exit code of the first one.

        Args:
            then: What happens next; "" where nothing does.
        """
        told = failures(self._job)

        def order(rank: int) -> tuple[int, int]:
            # torch counts whole seconds. A rank that was killed says nothing: others fail by its absence.
            return (told[rank].time if rank in told else 0, -rank)

        # What ended after the first one was ended by this process, or because the others were gone.
        by_itself = [rank for rank, one in self.failures.items() if one.local_rank in self.dead]
        first = min(by_itself or self.failures, key=order)
        failure = self.failures[first]
        code = int(failure.exitcode)
        lines = ["how the ranks ended:"]
        for rank in sorted({*self._known, *self.failures, *told}):
            lines.append("  " + self._line(rank, told.get(rank), rank == first))
        last = verdict(self._job) or (told[first].told if first in told else "")
        if not last:
            output = last_output(self._job, failure.local_rank, _TAIL)
            lines += [f"what rank {first} wrote last:", *(f"  {line}" for line in output)] if output else []
            last = f"rank {first} ended with {_how(code)}; the others were stopped"
        print("\n".join([*lines, last, *([then] if then else [])]), file=sys.stderr, flush=True)
        return code if code > 0 else 128 - code

    def _line(self, rank: int, told: Failure | None, first: bool) -> str:
        failure = self.failures.get(rank)
        how = f"ended with {_how(int(failure.exitcode))}" if failure is not None else "was stopped"
        return f"rank {rank} {how}" + (" first" if first else "") + (f": {told.what}" if told else "")


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
