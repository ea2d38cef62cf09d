"""What devices have: memory and its bandwidth, links to their neighbours, other machines and the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from ...callbacks.monitors.peak_flops import peak_flops
from ...errors import PacelineError, nearest

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """A kind of device; bandwidths are peaks, in bytes per second and one direction.

    Args:
        name: As users write it.
        memory: Bytes.
        bandwidth: Of its memory.
        link: To the other devices of its machine.
        network: To other machines, for each device.
        host_link: To the memory of its host.

    Example:
        >>> find_device("H100").link
        450000000000.0
    """

    name: str
    memory: int
    bandwidth: float
    link: float
    network: float
    host_link: float

    def peak(self, dtype: torch.dtype) -> float | None:
        """FLOP per second in dense matrix products of this dtype at most; None where that is not known."""
        return peak_flops(self.name, dtype)


def _device(name: str, gib: int, memory: float, link: float, network: float, host: float) -> Device:
    return Device(name, gib * GIB, *(value * 1e9 for value in (memory, link, network, host)))


# NVIDIA's data sheets: memory in GiB, then GB per second: memory, NVLink in one direction (half of the sum
# that is printed; PCIe where there is none), network, PCIe in one direction. The network is no part of a
# device: a port of 200 Gb/s for each A100 (DGX A100), 400 Gb/s for each H100, H200 and B200 (their DGX),
# 100 Gb/s for a V100 (DGX-2), 25 Gb/s for the others.
_DEVICES = (
    _device("A100-40GB", 40, 1555, 300, 25, 32),
    _device("A100", 80, 2039, 300, 25, 32),
    _device("H100 PCIe", 80, 2000, 64, 50, 64),
    _device("H100 NVL", 94, 3900, 300, 50, 64),
    _device("H100", 80, 3350, 450, 50, 64),
    _device("H200 NVL", 141, 4800, 450, 50, 64),
    _device("H200", 141, 4800, 450, 50, 64),
    _device("B200", 180, 7700, 900, 50, 64),
    _device("L4", 24, 300, 32, 3.125, 32),
    _device("T4", 16, 320, 16, 3.125, 16),
    _device("V100-SXM2", 32, 900, 150, 12.5, 16),
    _device("V100-PCIE", 32, 900, 16, 12.5, 16),
    _device("RTX 4090", 24, 1008, 32, 3.125, 32),
)
DEVICES = {device.name: device for device in _DEVICES}
"""The known devices by name."""


def find_device(name: str) -> Device:
    """The device of that name, as users or torch write it: ``"H100"``, ``"NVIDIA H100 80GB HBM3"``.

    Raises:
        PacelineError: for a device that is not in the table.
    """
    if "A100" in name and "40GB" in name:
        return DEVICES["A100-40GB"]
    for device in sorted(_DEVICES, key=lambda one: -len(one.name)):
        if re.search(rf"(?<!\w){re.escape(device.name)}(?!\w)", name, re.IGNORECASE):
            return device
    raise PacelineError(
        "this device is not in the table of devices",
        code="unknown-choice",
        got=name,
        allowed=", ".join(DEVICES),
        meant=nearest(name, list(DEVICES)),
        fix="memory=... alone answers whether it fits; assume={...} gives what a step's time needs",
    )


def device_here() -> Device | None:
    """The accelerator of this machine, where it is in the table."""
    if not torch.cuda.is_available():
        return None
    try:
        return find_device(torch.cuda.get_device_name())
    except PacelineError:
        return None


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 1024**power for power, unit in enumerate(("K", "M", "G", "T"), 1)}


def parse_bytes(given: int | float | str, where: str = "memory") -> int:
    """A number of bytes, as ``"80GiB"``, ``"80 GB"`` or an int.

    Args:
        given: What the user wrote.
        where: The argument, for errors.

    Raises:
        PacelineError: for what is no size above 0.

    Example:
        >>> parse_bytes("80GiB")
        85899345920
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]?i?)b?\s*", str(given), re.IGNORECASE)
    size = int(float(found[1]) * _UNITS.get(found[2].upper(), 0)) if found else 0
    if size <= 0 or isinstance(given, bool):
        raise PacelineError(
            f"{where} is no number of bytes",
            code="invalid-value",
            got=given,
            allowed='a number, or as "80GiB", "80GB", "500MB"',
        )
    return size
