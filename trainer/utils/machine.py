"""What this process may use of its machine: processors, memory, files, shared memory."""

from __future__ import annotations

import math
import os
import shutil
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps the tensors that processes share."""
_UNLIMITED = 1 << 60  # bytes: what a cgroup without its own limit says


def processors(quota: float | None = None) -> int:
    """How many processors this process may use: those of its affinity, and of its cgroup's quota.

    Args:
        quota: Of ``cgroup_limits``; None: no quota.

    Example:
        >>> processors(quota=0.5)
        1
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


@cache
def cgroup_limits(root: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> tuple[float | None, int | None]:
    """The processors and bytes of memory that control groups leave this process; None for no limit.

    Read once: it takes 6 ms.

    Args:
        root: Where control groups are.
        own: The file that names those of this process.
    """
    quotas: list[float] = []
    sizes: list[int] = []
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for kind in controllers.split(","):
                for folder in _upwards(root / kind if kind else root, path):
                    _read_limits(folder, quotas, sizes)
    return min(quotas, default=None), min(sizes, default=None)


def _upwards(root: Path, path: str) -> list[Path]:
    """The folder of a group and those above it: any of them may set a limit."""
    folder = root / path.lstrip("/")
    return [one for one in (folder, *folder.parents) if one == root or root in one.parents]


def _read_limits(folder: Path, quotas: list[float], sizes: list[int]) -> None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _text(folder / name)
        if text.isdecimal() and int(text) < _UNLIMITED:
            sizes.append(int(text))
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(period):
        quotas.append(int(quota) / int(period))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def resource_limits() -> dict[str, int | None]:
    """Open files, processes and bytes of locked memory that are allowed; None for no limit."""
    if sys.platform == "win32":
        return {}
    import resource

    names = {"open_files": "NOFILE", "processes": "NPROC", "locked_memory": "MEMLOCK"}
    found = {}
    for name, limit in names.items():
        number = getattr(resource, f"RLIMIT_{limit}", None)
        if number is not None:
            soft = resource.getrlimit(number)[0]
            found[name] = None if soft == resource.RLIM_INFINITY else int(soft)
    return found


def space(folder: Path) -> tuple[int, int] | None:
    """Bytes in all and free bytes of the file system of a folder; None where it cannot be read."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.total, usage.free


def container(root: Path = Path("/")) -> str | None:
    """The kind of container this process runs in, as far as it shows; None for none.

    Args:
        root: The root of the file system.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    for variable in ("APPTAINER_NAME", "SINGULARITY_NAME"):
        if variable in os.environ:
            return variable.partition("_")[0].lower()
    for file, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / file).exists():
            return name
    return os.environ.get("container")  # noqa: SIM112  # systemd's name for it


def network_interfaces() -> dict[str, dict[str, Any]]:
    """The network interfaces that are up: speed in Mbit/s (None where the driver does not say), MTU."""
    import psutil

    return {
        name: {"speed": found.speed or None, "mtu": found.mtu}
        for name, found in psutil.net_if_stats().items()
        if found.isup
    }
