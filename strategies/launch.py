"""Starting a script again as the ranks of a job, through torch's elastic agent, and how ranks end."""

from __future__ import annotations

import argparse
import builtins
import ctypes
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

from ..errors import PacelineError

_JOB = "PACELINE_JOB"
"""Names the folder in which ranks note how they ended, and the variable that says where it is."""
_LAUNCHER = "PACELINE_LAUNCHER"
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


def start_ranks(count: int, num_nodes: int = 1) -> NoReturn:
    """Run this very command as ``count`` ranks here; ends this process with the job's exit code.

    The ranks run the script from its top, with its arguments and in its folder. On several machines the
    rendezvous comes from torchrun's variables (``PET_RDZV_ENDPOINT`` and its like).

    Raises:
        SystemExit: always; 0 when all ranks ended well, 128 + n when signal n stopped the job in order.
    """
    _check_nodes(num_nodes)
    os.chdir(_FOLDER)
    # The program is not torchrun's to start: the interpreter, its options and ours are kept as given.
    options = [f"--nproc-per-node={count}", f"--nnodes={num_nodes}", "--no-python"]
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
            "the cluster says another number of machines than the one asked for",
            got=f"num_nodes={num_nodes}, PET_NNODES={told}",
            fix=f"Trainer(num_nodes={told}), or start the script with torchrun",
        )
    if num_nodes > 1 and not {"PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"} & set(os.environ):
        raise PacelineError(
            f"{num_nodes} machines were asked for, and nothing says where they meet",
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

    os.environ[_JOB], os.environ[_LAUNCHER] = str(job), str(os.getpid())
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for name in [n for n in logging.root.manager.loggerDict if n.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters we tell ourselves

    class Agent(api.LocalElasticAgent):
        def _exit_barrier(self) -> None:
            if any(job.glob("stopped-*")):  # another machine's agent, which took the signal, never comes
                self._exit_barrier_timeout = _FAILURE_SECONDS
            super()._exit_barrier()  # type: ignore[no-untyped-call]

    api.LocalElasticAgent = Agent  # type: ignore[misc]  # this process is the launcher and nothing else
    PContext.close.__defaults__ = (None, _FAILURE_SECONDS)
    try:
        api.launch_agent(config, program, arguments)
    except ChildFailedError as error:
        return _tell_failure(error, job)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    notes = sorted(job.glob("stopped-*"))
    return 128 + int(notes[0].read_text()) if notes else 0


def _tell_failure(error: Any, job: Path) -> int:
    """Print what the rank that failed first wrote last, and give its exit code."""

    def told(item: tuple[int, Any]) -> int:
        # torch counts whole seconds. A rank that was killed says nothing: the others fail by its absence.
        note = job / f"failed-{item[0]}"
        return int(note.read_text()) if note.exists() else 0

    rank, failure = min(error.failures.items(), key=lambda item: (told(item), -item[0]))
    written = job / f"rank-{failure.local_rank}.log"
    if not written.exists():
        found = sorted(job.glob(f"output/*/attempt_*/{failure.local_rank}/stderr.log"))
        written = found[-1] if found else written
    if failure.local_rank and written.is_file():
        print(f"what rank {rank} wrote last:", file=sys.stderr)
        lines = written.read_text(errors="replace").splitlines()
        print("\n".join(f"  {line}" for line in lines[-_TAIL:]), file=sys.stderr)
    code = int(failure.exitcode)
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    print(f"rank {rank} ended with {how}; the others were stopped", file=sys.stderr)
    return code if code > 0 else 128 - code


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- in a rank ---------------------------------------------------------------------------------


def is_supervised() -> bool:
    """Whether an elastic agent watches this process: to it any exit code but 0 is a failure."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def die_with_launcher() -> None:
    """Let the kernel end this process when the process that started it is gone (Linux)."""
    launcher = os.environ.get(_LAUNCHER)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != int(launcher):  # it was gone already
        os._exit(137)


def note_stop(signal_number: int) -> None:
    """Tell the launcher that this job ended in order because of a signal."""
    job = os.environ.get(_JOB)
    if job is not None and os.path.isdir(job):
        Path(job, f"stopped-{os.environ.get('RANK', '0')}").write_text(str(signal_number))


def note_failure() -> None:
    """Tell the launcher when this rank failed: what fails after it may fail because of it."""
    job = os.environ.get(_JOB)
    if job is not None and os.path.isdir(job):
        Path(job, f"failed-{os.environ.get('RANK', '0')}").write_text(str(time.time_ns()))


def write_output_to(path: Path) -> None:
    """From now on, what this process prints goes to ``path``, and what it printed so far too.

    For ranks whose output the launcher keeps off the console; others' is left alone.
    """
    job, local_rank = os.environ.get(_JOB), os.environ.get("LOCAL_RANK", "0")
    if job is None or local_rank == "0" or not os.path.isdir(job):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab", buffering=0) as file:
        for name in ("stdout.log", "stderr.log"):
            for earlier in sorted(Path(job, "output").glob(f"*/attempt_*/{local_rank}/{name}")):
                file.write(earlier.read_bytes())
                os.truncate(earlier, 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    link = Path(job, f"rank-{local_rank}.log")
    link.unlink(missing_ok=True)
    link.symlink_to(path.resolve())
