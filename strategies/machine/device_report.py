"""The accelerators of this machine, and how they reach each other, for a report."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from ..torch_internals import memory_of
from .devices import accelerator_here

_MOST_LINKS = 18  # of NVLink, on one device


def devices_here(initialise: bool = True) -> list[dict[str, Any]]:
    """Each accelerator: its name, memory in bytes, and what its driver says of it.

    Args:
        initialise: False: say how many there are and no more where this process does not use them yet.

    Example:
        >>> isinstance(devices_here(), list)
        True
    """
    kind = accelerator_here()
    if kind is None:
        return []
    count = torch.accelerator.device_count()
    if not (initialise or _in_use(kind)):
        return [{"device": f"{kind.type}:{index}"} for index in range(count)]
    return [_device(kind, index) for index in range(count)]


def peer_access(initialise: bool = True) -> dict[str, str]:
    """How accelerators reach each other's memory, by pair of devices or by device; empty for less than two.

    Args:
        initialise: As in ``devices_here``.
    """
    kind = accelerator_here()
    if kind is None or kind.type != "cuda" or not (initialise or _in_use(kind)):
        return {}
    count = torch.accelerator.device_count()
    found = {}
    for first in range(count):
        for second in range(first + 1, count):
            direct = torch.cuda.can_device_access_peer(first, second)
            found[f"{first} and {second}"] = "direct" if direct else "through the host"
    return found | (_links(count) if count > 1 else {})


def _in_use(kind: torch.device) -> bool:
    """Whether this process has begun to use the accelerator: that takes a second, and memory."""
    started = getattr(torch.get_device_module(kind), "is_initialized", None)
    return bool(started()) if started is not None else False


def _device(kind: torch.device, index: int) -> dict[str, Any]:
    found: dict[str, Any] = {"device": f"{kind.type}:{index}"}
    module = torch.get_device_module(kind)
    with suppress(Exception):  # not every kind of device has all of these
        properties = module.get_device_properties(index)
        found["name"] = properties.name
        found["processors"] = getattr(properties, "multi_processor_count", None)
        if hasattr(properties, "major"):
            found["capability"] = f"{properties.major}.{properties.minor}"
    with suppress(Exception):
        free, total = memory_of(index)
        found |= {"memory": total, "free": free}
    return found


def _links(count: int) -> dict[str, str]:
    """How many NVLinks each device has; empty where NVML or its Python package is missing."""
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return {}
    found = {}
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for index in range(count):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found[f"NVLinks of {index}"] = str(_active(pynvml, handle))
        pynvml.nvmlShutdown()
    return found


def _active(pynvml: Any, handle: Any) -> int:
    active = 0
    for link in range(_MOST_LINKS):
        with suppress(pynvml.NVMLError):
            active += pynvml.nvmlDeviceGetNvLinkState(handle, link)
    return active
