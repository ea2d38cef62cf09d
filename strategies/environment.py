"""Where this process stands: its rank among the others and its device, decided once, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import PacelineError, nearest


@dataclass(frozen=True)
class Environment:
    """Rank, world and device of this process. Strategies read these here, never ``os.environ``."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files and prints."""
        return self.rank == 0


def find_device(accelerator: str, devices: int | str | Sequence[int]) -> torch.device:
    """The device asked for, through ``torch.accelerator``: no device is known by name here.

    Args:
        accelerator: ``"auto"`` (the accelerator if there is one, else the CPU), ``"gpu"`` (whatever
            accelerator there is), or a device type such as ``"cpu"``, ``"cuda"``, ``"mps"``.
        devices: ``"auto"``, a count, -1 for all, a list of ids, or ids as ``"0,1"``.

    Raises:
        PacelineError: when there is no such device, or more than one is asked for.
    """
    kind = _find_kind(accelerator)
    ids = _find_ids(kind, devices)
    if len(ids) > 1:
        raise PacelineError(
            f"{len(ids)} devices were asked for; this version trains on one",
            got=f"devices={devices!r}",
            fix="devices=1, until the strategies for several devices are released",
        )
    return torch.device(kind) if kind == "cpu" else torch.device(kind, ids[0])


def _find_kind(accelerator: str) -> str:
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator == "cpu" or (accelerator == "auto" and present is None):
        return "cpu"
    if present is not None and accelerator in ("auto", "gpu", present.type):
        return present.type
    here = ["auto", "cpu"] + (["gpu", present.type] if present is not None else [])
    raise PacelineError(
        f"there is no {accelerator!r} device on this machine",
        got=f"accelerator={accelerator!r}",
        allowed=", ".join(here),
        meant=nearest(accelerator, here),
        fix="a CUDA, ROCm, XPU or MPS build of torch is needed to use such a device"
        if present is None
        else None,
    )


def _find_ids(kind: str, devices: int | str | Sequence[int]) -> list[int]:
    here = 1 if kind == "cpu" else torch.accelerator.device_count()
    if isinstance(devices, str) and devices != "auto":
        devices = [int(part) for part in devices.split(",")] if "," in devices else int(devices)
    if devices == "auto" or devices == -1:
        # This version trains on one device, so "auto" takes the first.
        return [0] if devices == "auto" else list(range(here))
    ids = list(range(devices)) if isinstance(devices, int) else [int(i) for i in devices]
    missing = [i for i in ids if kind != "cpu" and i >= here]
    if missing:
        raise PacelineError(
            f"more {kind} devices were asked for than there are",
            got=f"devices={devices!r}",
            allowed=f"{here} of them: ids {list(range(here))}",
        )
    return ids
