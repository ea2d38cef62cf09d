"""How many ranks there are to be, and whether a launcher and the devices agree."""

from __future__ import annotations

from ..errors import PacelineError
from ..strategies.launch.environment import LauncherRank, find_launcher_rank
from ..strategies.machine.devices import find_ids, find_kind
from .finding import FAILED, OK, Finding, of_error

_ON_A_CPU = 2


def check_launcher(devices: int | None, launched: LauncherRank | None) -> Finding:
    """Whether the world that a launcher made is the one that is asked for.

    Args:
        devices: Ranks on this machine; None takes what there is.
        launched: The rank that a launcher gave this process; None where there is none.
    """
    name = "launcher"
    if launched is None:
        return Finding(name, OK, "none: paceline starts the ranks")
    here, world = launched.local_world_size, launched.world_size
    text = f"{launched.launcher} started {world} rank{'s' * (world > 1)}, {here} on this machine"
    if devices is not None and devices != here:
        cure = (
            f"start {devices} ranks here (torchrun --nproc-per-node {devices}, srun --ntasks-per-node "
            f"{devices}), or --devices {here}; a variable left from another job: unset RANK WORLD_SIZE"
        )
        return Finding(name, FAILED, f"{text}, and {devices} are asked for", cure)
    return Finding(name, OK, f"{text}; these checks start their own")


def this_launch() -> LauncherRank | Finding | None:
    """The rank that a launcher gave this process; what is wrong where it gave half of one."""
    try:
        return find_launcher_rank()
    except PacelineError as error:
        return of_error("launcher", error)


def check_devices(accelerator: str, devices: int | None) -> tuple[Finding, str, int]:
    """Whether there are so many devices.

    Args:
        accelerator: As the Trainer takes it.
        devices: How many; None is all there are, and 2 ranks on a CPU.

    Returns:
        The finding, the kind of device, and how many ranks there are to be; 0 where it failed.
    """
    try:
        kind = find_kind(accelerator)
        if devices is None:
            devices = _ON_A_CPU if kind == "cpu" else len(find_ids(kind, "auto"))
        count = len(find_ids(kind, devices))
    except PacelineError as error:
        cure = "nvidia-smi shows the devices; CUDA_VISIBLE_DEVICES may hide some; --devices asks for fewer"
        return of_error("devices", error, cure), accelerator, 0
    return Finding("devices", OK, f"{count} rank{'s' * (count > 1)} on {kind}"), kind, count
