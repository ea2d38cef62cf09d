"""``paceline launch --slurm``: the script of a job that starts a launcher on each of its machines."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import PacelineError
from .job import FIRST_PORT, PORTS

_MARK = "# Written by `paceline launch --slurm`"
_OURS = "--slurm", "--dry-run"
_OPTION = re.compile(r"[a-z][a-z-]*(=[^\n]*)?")
_HEAD_NODE = f'"$head_node:$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"'  # a port that jobs do not share


def submit(parsed: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Write the script of a job and submit it with ``sbatch``; with ``--dry-run`` print it alone.

    Args:
        parsed: Of ``paceline launch``: torchrun's options, ``sbatch`` and ``dry_run``.
        arguments: The same, as they were given.

    Returns:
        The exit code of ``sbatch``; 0 for ``--dry-run``.

    Raises:
        PacelineError: for an option that the script sets by itself, for a file of this name that is not
            ours, and where there is no SLURM.
    """
    start = len(arguments) - len(parsed.training_script_args) - 1
    if "--slurm" not in arguments[:start]:
        raise PacelineError(
            "with --slurm all options are written in full",
            code="slurm-job",
            got=" ".join(arguments[:start]),
        )
    text = batch_script(parsed, arguments[:start], arguments[start:])
    if parsed.dry_run:
        print(text, end="")
        return 0
    file = Path(f"{_name_of(parsed)}.sbatch")
    if file.exists() and _MARK not in file.read_text(errors="replace"):
        raise PacelineError(
            f"{file} exists, and paceline did not write it",
            code="file-exists",
            fix="move it, or save the script under another name: paceline launch --slurm --dry-run ... "
            "> other.sbatch; sbatch other.sbatch",
        )
    file.write_text(text)
    print(f"wrote {file}", flush=True)
    try:
        done = subprocess.run(["sbatch", str(file)], check=False)
    except FileNotFoundError:
        raise PacelineError(
            "there is no sbatch on this machine",
            code="slurm-job",
            got=f"{file} is written",
            fix=f"on a login node of the cluster: sbatch {file}",
        ) from None
    return done.returncode


def batch_script(parsed: argparse.Namespace, options: Sequence[str], command: Sequence[str]) -> str:
    """The text for ``sbatch``.

    Args:
        parsed: Of ``paceline launch``.
        options: As they were given, without the script.
        command: The script, or the name of a module, and its arguments.

    Source:
        The manual page of sbatch.
    """
    settings = {
        "job-name": _name_of(parsed),
        "nodes": _nodes(parsed.nnodes),
        "ntasks-per-node": "1",
        "requeue": "",
        "open-mode": "append",
        "signal": "USR1@120",
        "chdir": os.getcwd(),
    }
    settings |= _given(parsed.sbatch)
    if "no-requeue" in settings:
        del settings["requeue"]
    head = [
        f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "")
        for name, value in settings.items()
    ]
    several = _nodes(parsed.nnodes) != "1" and "--master-addr" not in " ".join(options).replace("_", "-")
    rendezvous = several and not parsed.rdzv_endpoint
    launcher = [sys.executable, "-m", "paceline", "launch", *_without_ours(options)]
    line = shlex.join(launcher)
    find_head = ""
    if rendezvous:
        find_head = 'head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        line += f' --rdzv-backend=c10d --rdzv-endpoint={_HEAD_NODE} --rdzv-id="$SLURM_JOB_ID"'
    return (
        "#!/bin/bash\n"
        f"{_MARK}; submit it again with sbatch.\n" + "\n".join(head) + "\n\n"
        "# srun does not take this from sbatch since SLURM 22.05\n"
        'if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi\n'
        f"{find_head}"
        "trap : TERM  # it is for the ranks, which save: srun would end them\n"
        f"srun --kill-on-bad-exit=1 {line} {shlex.join(command)}\n"
    )


def _given(options: Sequence[str]) -> dict[str, str]:
    """What ``--sbatch`` gave, by name.

    Raises:
        PacelineError: for what is no long option, and for one that follows from launch's own.
    """
    found = {}
    for option in options:
        text = option.removeprefix("--")
        name, _, value = text.partition("=")
        if not _OPTION.fullmatch(text):
            raise PacelineError(
                "--sbatch takes a long option of sbatch",
                code="slurm-job",
                got=option,
                fix="--sbatch partition=gpu",
            )
        if name in ("nodes", "ntasks", "ntasks-per-node", "wrap"):
            raise PacelineError(
                f"a job has one launcher on each machine, which starts its ranks; {name} is not an option",
                code="slurm-job",
                got=f"--sbatch {option}",
                fix="--nnodes, the number of machines, and --nproc, the number of ranks on each",
            )
        found[name] = value
    return found


def _nodes(nnodes: str) -> str:
    """How many machines, as sbatch has it: torchrun's ``2:4`` is ``2-4``."""
    least, _, most = nnodes.partition(":")
    return least if most in ("", least) else f"{least}-{most}"


def _without_ours(options: Sequence[str]) -> list[str]:
    kept, skip = [], False
    for option in options:
        if not skip and option not in _OURS and not option.startswith("--sbatch"):
            kept.append(option)
        skip = option == "--sbatch"
    return kept


def _name_of(parsed: argparse.Namespace) -> str:
    script = str(parsed.training_script)
    return script.rpartition(".")[2] if parsed.module else Path(script).stem
