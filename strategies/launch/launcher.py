"""Starting a script again as the ranks of a job, through torch's elastic agent, and how ranks end."""

from __future__ import annotations

import argparse
import builtins
import glob
import os
import shutil
import socket
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ...errors import PacelineError
from ..machine.devices import is_accelerator_in_use
from .job_notes import is_alive
from .slurm import current_job

_JOB_FOLDER = "paceline-"
_SHUTDOWN_SECONDS = 300  # a rank that is to stop saves first
_A_DAY = 86400
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"  # which are forwarded to the ranks
_FOLDER = os.getcwd()  # the script may be somewhere else by the time of fit
USED_TOO_EARLY = (
    "restart the kernel, and call fit before anything else touches the accelerator (as does "
    "torch.cuda.is_available, unless PYTORCH_NVML_BASED_CUDA_CHECK=1 is set), or write a script"
)
"""What to do where ranks are to be forked from a process that has used its accelerator."""


# A rank dies with its launcher from its first moment on: the request outlives exec.
_GUARD = """import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): os._exit(137)
os.execvp(sys.argv[2], sys.argv[2:])"""


def is_notebook() -> bool:
    """Whether IPython runs this program: in the kernel of a notebook, or at its own prompt."""
    return hasattr(builtins, "__IPYTHON__")


def why_not_relaunch() -> str | None:
    """Why this program cannot be started again from its top; None where it can."""
    main = sys.modules.get("__main__")
    if is_notebook():
        return "a notebook runs in one process"
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return "an interactive session runs in one process"
    if "PYTEST_CURRENT_TEST" in os.environ and "_pytest" in sys.modules:
        return "pytest would be started again in each rank"
    file = getattr(main, "__file__", None)
    if (file is None or not os.path.exists(file)) and sys.argv[:1] != ["-c"]:
        return "this program does not come from a file"
    return None


def check_forkable() -> None:
    """Refuse to fork ranks out of this process where they could not compute.

    Raises:
        PacelineError: saying what to do.
    """
    if sys.platform != "linux":
        raise PacelineError(
            "a notebook forks its ranks, which is safe on Linux only",
            code="notebook-ranks",
            got=sys.platform,
            fix="write the training as a script and run `python train.py`, or train here with devices=1",
        )
    if is_accelerator_in_use():
        raise PacelineError(
            "the accelerator is in use in this notebook already, and ranks forked now could not use it",
            code="notebook-ranks",
            fix=f"{USED_TOO_EARLY}; devices=1 trains here",
        )


def start_ranks(count: int, num_nodes: int = 1, max_restarts: int = 0) -> NoReturn:
    """Run this very command as ``count`` ranks here; ends this process with the job's exit code.

    The ranks run the script from its top, with its arguments and in its folder. On several machines the
    rendezvous comes from torchrun's variables (``PET_RDZV_ENDPOINT`` and its like).

    Args:
        count: Ranks to start on this machine.
        num_nodes: Machines that take part; each starts ``count`` ranks.
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
    first rank here writes where this process does, the others into their run's log. With ``--slurm``
    nothing is started here: a job is submitted that does so (``slurm_script.py``).

    Args:
        arguments: torchrun's, then the script and its arguments: ``["--nproc", "2", "train.py"]``.

    Returns:
        0 when all ranks ended well, 128 + n when signal n stopped the job in order, else another number.
    """
    from torch.distributed.run import config_from_args, get_args_parser

    parser = get_args_parser()
    parser.add_argument("--nproc", dest="nproc_per_node", default=argparse.SUPPRESS)
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--sbatch", action="append", default=[])
    parser.add_argument("--dry-run", action="store_true")
    if "TORCHELASTIC_SIGNALS_TO_HANDLE" not in os.environ:
        parser.set_defaults(signals_to_handle=_SIGNALS)
    parser.allow_abbrev = "--slurm" not in arguments
    parsed = parser.parse_args(arguments)
    if parsed.slurm:
        from .slurm_script import submit

        return submit(parsed, arguments)
    if parsed.sbatch or parsed.dry_run:
        raise PacelineError(
            "--sbatch and --dry-run are for a job of SLURM",
            code="options-conflict",
            fix="paceline launch --slurm ... train.py",
        )
    alone = parsed.nnodes in ("1", "1:1") and parsed.rdzv_backend == "static" and not parsed.rdzv_endpoint
    if parsed.standalone or alone:
        parsed.rdzv_backend, parsed.rdzv_endpoint = "c10d", "localhost:0"
        parsed.rdzv_id = str(uuid.uuid4())
    count = parsed.nproc_per_node
    if count.isdecimal() and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(max(1, _processors() // max(int(count), 1)))
    with new_job_folder() as job:
        is_ours = not (parsed.log_dir or parsed.redirects != "0" or parsed.tee != "0")
        if is_ours:
            parsed.log_dir = job  # torch would make an empty folder for each launch, and leave it
        config, program, rest = config_from_args(parsed)
        if sys.platform.startswith("linux") and isinstance(program, str):
            rest = ["-ISc", _GUARD, str(os.getpid()), program, *rest]
            program = sys.executable
        if getattr(parsed, "shutdown_timeout", None) is None:  # torchrun has it since torch 2.12
            # SLURM sets a limit itself.
            config.shutdown_timeout = _SHUTDOWN_SECONDS if current_job() is None else _A_DAY
        if is_ours:
            config.logs_specs = _logs(Path(job), config.nproc_per_node)
        from .elastic_agent import run_agent

        return run_agent(config, program, rest, Path(job))


def new_job_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the notes of a job, which only this user can read; it is removed with the job."""
    remove_left_folders()
    return tempfile.TemporaryDirectory(prefix=f"{_job_prefix()}{os.getpid()}-")


def remove_left_folders() -> None:
    """Remove the folders that killed launchers of this host could not remove."""
    for folder in Path(tempfile.gettempdir()).glob(f"{glob.escape(_job_prefix())}*-*"):
        process = folder.name.removeprefix(_job_prefix()).partition("-")[0]
        with suppress(OSError):
            if process.isdecimal() and not is_alive(int(process)):
                shutil.rmtree(folder, ignore_errors=True)


def _job_prefix() -> str:
    # the folder for temporary files may be shared: a process id says nothing about another host
    return f"{_JOB_FOLDER}{socket.gethostname()}-"


def _check_nodes(num_nodes: int) -> None:
    asked = os.environ.get("PET_NNODES", str(num_nodes))
    least, _, most = asked.partition(":")
    if least != str(num_nodes) or (most or least) != least:
        raise PacelineError(
            "num_nodes does not match PET_NNODES",
            code="number-of-ranks",
            got=f"num_nodes={num_nodes}, PET_NNODES={asked}",
            fix=f"Trainer(num_nodes={asked}), or start the script with torchrun",
        )
    if num_nodes > 1 and not {"PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"} & set(os.environ):
        raise PacelineError(
            f"{num_nodes} machines were asked for, and no rendezvous is configured",
            code="launcher-environment",
            got=f"num_nodes={num_nodes}",
            fix="on each of them: paceline launch --nnodes 2 --nproc 8 --rdzv-backend c10d "
            "--rdzv-endpoint HOST:29500 train.py, or srun",
        )


def _logs(job: Path, count: int) -> Any:
    """Rank 0 of this machine writes where we do; what the others write goes to files."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    return DefaultLogsSpecs(log_dir=str(job / "output"), redirects=dict.fromkeys(range(1, count), Std.ALL))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
