"""``_AcceleratorConnector``: private to Lightning, and what libraries ask for the device to compute on."""

from __future__ import annotations

from typing import Any

import torch

from ...translation import private
from ..accelerators import CPUAccelerator, accelerator_of, name_of


class _AcceleratorConnector:
    """The kind of device and how many, chosen as ``Trainer(accelerator=..., devices=...)`` chooses them.

    Args:
        accelerator: A name, ``"auto"``, or an object of ``accelerators``.
        devices: How many, which, or ``"auto"``.
        **accepted: The other arguments of Lightning's.
    """

    def __init__(self, accelerator: Any = "auto", devices: Any = "auto", **accepted: Any) -> None:
        name = name_of(accelerator)
        name = self._choose_auto_accelerator() if name in ("auto", None) else name
        self._accelerator_flag = "cuda" if name == "gpu" and torch.cuda.is_available() else name
        listed = [int(one) for one in str(devices).strip("[]").split(",") if one.strip().isdigit()]
        is_list = isinstance(devices, (list, tuple)) or "," in str(devices)
        count = accelerator_of(torch.device(self._accelerator_flag)).auto_device_count()
        numbers = listed if is_list else list(range(listed[0] if listed else count))
        kind = torch.device(self._accelerator_flag).type
        on_cpu = self._accelerator_flag == CPUAccelerator.name
        self._devices_flag: list[int] | int = len(numbers) if on_cpu and not is_list else numbers
        self._parallel_devices = [torch.device(kind, *([] if on_cpu else [one])) for one in numbers]

    @staticmethod
    def _choose_auto_accelerator(*args: Any) -> str:
        found = torch.accelerator.current_accelerator(check_available=True)
        return "cpu" if found is None else found.type

    @property
    def is_distributed(self) -> bool:
        """Whether there are several devices."""
        return len(self._parallel_devices) > 1


def __getattr__(name: str) -> Any:
    return getattr(private, name)
