"""Which devices are meant, through ``torch.accelerator``: no device is known by name here."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...errors import PacelineError, nearest
from ...other_trainers.engines import TPU
from ..torch_internals import memory_of


def accelerator_here() -> torch.device | None:
    """The accelerator of this machine, without a number."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def is_accelerator_in_use() -> bool:
    """Whether this process has initialised its accelerator, which a fork of it then cannot use."""
    present = torch.accelerator.current_accelerator()  # asks nothing of the device
    if present is None:
        return False
    module = torch.get_device_module(present)
    # What cannot be asked is taken for used.
    return (
        bool(module.is_initialized())
        if hasattr(module, "is_initialized")
        else accelerator_here() is not None
    )


def find_kind(accelerator: str) -> str:
    """The device type that ``accelerator`` names.

    Args:
        accelerator: ``"auto"`` (the accelerator if there is one, else the CPU), ``"gpu"`` (whatever
            accelerator there is), or a device type such as ``"cpu"``, ``"cuda"``, ``"mps"``.

    Raises:
        PacelineError: when there is no such device.
    """
    present = accelerator_here()
    if accelerator == "cpu" or (accelerator == "auto" and present is None):
        return "cpu"
    if present is not None and accelerator in ("auto", "gpu", present.type):
        return present.type
    if accelerator in ("tpu", "xla"):
        raise PacelineError(
            "accelerator: there is no TPU here", code="device-not-found", got=accelerator, fix=TPU
        )
    here = ["auto", "cpu"] + (["gpu", present.type] if present is not None else [])
    raise PacelineError(
        f"there is no {accelerator!r} device on this machine",
        code="device-not-found",
        got=f"accelerator={accelerator!r}",
        allowed=", ".join(here),
        meant=nearest(accelerator, here),
        fix="a CUDA, ROCm, XPU or MPS build of torch is needed to use such a device"
        if present is None
        else None,
    )


def find_ids(kind: str, devices: int | str | Sequence[int]) -> list[int]:
    """The devices of one machine, by number. On a CPU a number stands for a separate process.

    Args:
        kind: A device type such as ``"cpu"`` or ``"cuda"``, as ``find_kind`` returns it.
        devices: ``"auto"`` (all accelerators, one CPU process), a count, -1 for all, a list of ids, or
            ids as ``"0,1"``.

    Raises:
        PacelineError: when there are not so many.
    """
    here = 1 if kind == "cpu" else torch.accelerator.device_count()
    if isinstance(devices, str) and devices != "auto":
        devices = [int(part) for part in devices.split(",")] if "," in devices else int(devices)
    if devices in ("auto", -1):
        return list(range(here))
    ids = list(range(devices)) if isinstance(devices, int) else [int(i) for i in devices]
    missing = [i for i in ids if kind != "cpu" and i >= here]
    if missing:
        raise PacelineError(
            f"more {kind} devices were asked for than there are",
            code="device-not-found",
            got=f"devices={devices!r}",
            allowed=f"{here} of them: ids {list(range(here))}",
        )
    return ids


def pins() -> bool:
    """Whether memory of the host is pinned for the accelerator here; mps shares the host's."""
    present = accelerator_here()
    return present is not None and present.type != "mps"


def copies_aside(device: torch.device) -> bool:
    """Whether a device copies from the host's pinned memory while it computes."""
    present = accelerator_here()
    return present is not None and device.type == present.type and pins()


def has_fused_kernels(device: torch.device) -> bool:
    """Whether torch's optimizers, fused, can skip an update there by a flag on the device.

    With ``fused=True`` the check for gradients that are not finite does not wait for the device.

    Example:
        >>> has_fused_kernels(torch.device("cuda")), has_fused_kernels(torch.device("cpu"))
        (True, False)
    """
    return device.type in ("cuda", "xpu")


def pci_address(device: torch.device) -> str | None:
    """A device's address on the PCI bus as /sys has it, ``0000:c1:00.0``; None where torch has none."""
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    if device.type == "cpu" or properties is None:
        return None
    found = properties(device)
    if not hasattr(found, "pci_bus_id"):
        return None
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def device_memory(device: torch.device) -> int:
    """Bytes of memory a device has in all; on a CPU, what is free for this process and its like."""
    if device.type == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    return memory_of(device)[1]
