"""Rank, world size and device of this process, decided once, in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...errors import PacelineError
from ..machine.devices import find_ids, find_kind
from .job import FIRST_PORT, PORTS, Job, find_job
from .job_notes import is_supervised
from .launcher import check_forkable, is_notebook, why_not_relaunch


@dataclass(frozen=True)
class Environment:
    """Rank, world size and device of this process. Strategies read these here, never ``os.environ``.

    Args:
        device: The device this process computes on.
        rank: The number of this process among all, from 0.
        world_size: The number of ranks on all machines.
        local_rank: The number of this process among those of its machine, from 0.
        local_world_size: The number of ranks on this machine.
        starts: How many ranks this process has yet to start on this machine; 0 for a rank itself.
        forks: Whether it forks them for each run, and continues when they have ended, as a notebook does.
        job: The job of SLURM or the experiment of Ray Train that this process belongs to.

    Example:
        >>> environment = Environment(torch.device("cpu"), rank=5, world_size=8, local_world_size=4)
        >>> environment.nodes, environment.is_global_zero
        (2, False)
    """

    device: torch.device
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    starts: int = 0
    forks: bool = False
    job: Job | None = None

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files and prints."""
        return self.rank == 0

    @property
    def nodes(self) -> int:
        """How many machines there are."""
        return -(-self.world_size // self.local_world_size)


@dataclass(frozen=True)
class LauncherRank:
    """The rank that a launcher gave this process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: str


def find_environment(
    accelerator: str, devices: int | str | Sequence[int], num_nodes: int = 1, restarts: bool = False
) -> Environment:
    """The rank and device of this process: a rank of a job, or the process that is to start the ranks.

    Args:
        accelerator: ``"auto"``, ``"cpu"``, ``"gpu"`` or a device type ``torch.accelerator`` knows.
        devices: A count, -1, a list of ids, ``"0,1"`` or ``"auto"``, on each machine.
        num_nodes: Machines that take part.
        restarts: A process that fails is to be started again, so that one alone needs a launcher too.

    Raises:
        PacelineError: when the devices are not there, when the job has another world size than ``devices``
            and ``num_nodes`` give, and when this program can neither be started again on several ranks nor
            fork them.

    Returns:
        The environment, whose ``starts`` is above 0 where this process is to start the ranks.

    Example:
        >>> environment = find_environment("cpu", devices=1)
        >>> environment.rank, environment.world_size, environment.device.type
        (0, 1, 'cpu')
    """
    launched = find_launcher_rank()
    if launched is None and is_notebook():
        os.environ.setdefault(
            "PYTORCH_NVML_BASED_CUDA_CHECK", "1"
        )  # to look for devices shall not use them
    job = None if is_notebook() else find_job()
    kind = find_kind(accelerator)
    ids = find_ids(kind, devices)
    if job is not None:
        job.check_world(1 if launched is None else launched.world_size)
    if launched is not None:
        if devices != "auto":
            _check_world(launched, len(ids), num_nodes, devices)
        return Environment(
            _device_of(kind, ids, launched),
            rank=launched.rank,
            world_size=launched.world_size,
            local_rank=launched.local_rank,
            local_world_size=launched.local_world_size,
            job=job,
        )
    forks = False
    if len(ids) * num_nodes > 1 or restarts:
        hindrance, here = why_not_relaunch(), num_nodes == 1 and not restarts
        if hindrance is not None and devices == "auto" and here:
            ids = ids[:1]  # a notebook trains on one device, unless it is asked for more
        elif here and is_notebook():
            check_forkable()
            forks = True
        elif hindrance is not None:
            raise PacelineError(
                f"{hindrance}, so it cannot "
                + ("be started again" if restarts else f"start {len(ids) * num_nodes} ranks"),
                code="notebook-ranks",
                got=f"devices={devices!r}" + (f", num_nodes={num_nodes}" if num_nodes > 1 else ""),
                fix="write the training as a script and run `python train.py`, or train here with "
                + ("max_restarts=0" if restarts else "devices=1, on one device"),
            )
    device = _numbered(kind, ids[0])
    several = len(ids) * num_nodes > 1
    return Environment(
        device,
        world_size=len(ids) * num_nodes,
        local_world_size=len(ids),
        starts=len(ids) if several or restarts else 0,
        forks=forks,
        job=job,
    )


def find_launcher_rank() -> LauncherRank | None:
    """The rank that a launcher gave this process; None for a process that was started alone."""
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        local_world_size = _number("LOCAL_WORLD_SIZE", world_size) if world_size > 1 else 1
        return LauncherRank(
            rank, world_size, _number("LOCAL_RANK", rank % local_world_size), local_world_size, "torch"
        )
    _refuse_half_a_rank()
    for launcher, names in _LAUNCHERS.items():
        if names[0] in os.environ and names[1] in os.environ:
            rank, world_size = _number(names[0]), _number(names[1])
            if (world_size == 1 and launcher != "torchrun") or _counts_machines(launcher):
                continue
            local_rank = _number(names[2], rank)
            launched = LauncherRank(rank, world_size, local_rank, _number(names[3], world_size), launcher)
            if not 0 <= launched.rank < launched.world_size:
                raise PacelineError(
                    f"{names[0]} is not below {names[1]}",
                    code="launcher-environment",
                    got=f"{names[0]}={rank}, {names[1]}={world_size}",
                    fix="unset both to train alone, or let one launcher set them",
                )
            _set_torch_variables(launched)
            return launched
    return None


def _refuse_half_a_rank() -> None:
    """RANK and WORLD_SIZE come together: one alone is a mistake in a job script, or left from another."""
    given = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if len(given) == 1:
        missing = "WORLD_SIZE" if given == ["RANK"] else "RANK"
        raise PacelineError(
            f"the variable {given[0]} is set and {missing} is not",
            code="launcher-environment",
            got=f"{given[0]}={os.environ[given[0]]}",
            fix=f"set {missing} too (torchrun and `paceline launch` set both), or unset {given[0]} to "
            "train alone",
        )


def _counts_machines(launcher: str) -> bool:
    """Kubernetes operators number pods by RANK; torchrun, and so our launcher, numbers processes."""
    several = os.environ.get("PET_NPROC_PER_NODE", "1") != "1"
    return launcher == "torchrun" and several and not is_supervised()


# rank, world, rank on this machine, ranks on this machine
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    found = re.match(r"\d+(?=$|[(,])", text or "")  # SLURM_STEP_TASKS_PER_NODE: "2(x3),1"
    if found is None:
        raise PacelineError(
            f"the variable {name} is no number",
            code="launcher-environment",
            got=f"{name}={text}",
            fix=f"unset {name} to train alone, or let a launcher set it",
        )
    return int(found[0])


def _set_torch_variables(launched: LauncherRank) -> None:
    """Set the variables that torch (and libraries on top of it) read, where a launcher did not."""
    for name, value in zip(
        _LAUNCHERS["torchrun"],
        (launched.rank, launched.world_size, launched.local_rank, launched.local_world_size),
        strict=True,
    ):
        os.environ.setdefault(name, str(value))
    if "MASTER_ADDR" not in os.environ:
        nodes = os.environ.get("SLURM_STEP_NODELIST") if launched.launcher == "srun" else None
        if nodes is None and launched.local_world_size != launched.world_size:
            raise PacelineError(
                f"{launched.launcher} started ranks on several machines, and MASTER_ADDR does not say "
                "which of them has rank 0",
                code="launcher-environment",
                fix="export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500 before starting",
            )
        os.environ["MASTER_ADDR"] = first_host(nodes) if nodes else "127.0.0.1"
    if "MASTER_PORT" in os.environ:
        _number("MASTER_PORT")
    else:
        # A number that all ranks know: the job step's, else the process that started them all here.
        job = _number("SLURM_JOB_ID", os.getppid()) * 31 + _number("SLURM_STEP_ID", 0)
        os.environ["MASTER_PORT"] = str(FIRST_PORT + job % PORTS)


def first_host(nodelist: str) -> str:
    """The first host of a SLURM node list: ``gpu[07-09,12],cpu1`` -> ``gpu07``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    assert first is not None
    return re.sub(r"\[([^,\]-]*)[^\]]*\]", r"\1", first[0])


def _check_world(launched: LauncherRank, asked: int, num_nodes: int, devices: object) -> None:
    if asked * num_nodes == launched.world_size:
        return
    here = launched.local_world_size
    raise PacelineError(
        f"{launched.launcher} started {launched.world_size} rank{'s' if launched.world_size > 1 else ''}, "
        f"and {asked * num_nodes} {'are' if asked * num_nodes > 1 else 'is'} asked for",
        code="number-of-ranks",
        got=f"devices={devices!r}, num_nodes={num_nodes}; a world of {launched.world_size}, "
        f"{here} on this machine",
        fix=f"devices={here}, num_nodes={-(-launched.world_size // here)}, "
        'or devices="auto", which takes the world as it is',
    )


def _device_of(kind: str, ids: list[int], launched: LauncherRank) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    if len(ids) == 1:  # the launcher shows each rank one device
        return _numbered(kind, ids[0])
    if launched.local_rank >= len(ids):
        raise PacelineError(
            f"there are more ranks on this machine than {kind} devices",
            code="device-not-found",
            got=f"{launched.local_world_size} ranks, {len(ids)} devices",
            fix=f"start {len(ids)} ranks here",
        )
    return _numbered(kind, ids[launched.local_rank])


def _numbered(kind: str, index: int) -> torch.device:
    return torch.device(kind) if kind == "cpu" else torch.device(kind, index)
