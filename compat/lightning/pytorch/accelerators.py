"""Lightning's accelerators: what ``Trainer(accelerator=...)`` takes beside names."""

from __future__ import annotations

from typing import Any

import torch

from ..translation.refusals import refuse_import

__all__ = [
    "Accelerator",
    "CPUAccelerator",
    "CUDAAccelerator",
    "MPSAccelerator",
    "find_usable_cuda_devices",
    "num_cuda_devices",
]


class Accelerator:
    """A kind of device.

    Attributes:
        name: As ``Trainer(accelerator=...)`` takes it.
        device_type: As torch calls it.
    """

    name = device_type = ""

    @classmethod
    def is_available(cls) -> bool:
        """Whether this machine has one."""
        return cls.auto_device_count() > 0

    @classmethod
    def auto_device_count(cls) -> int:
        """How many ``devices="auto"`` takes."""
        return torch.get_device_module(cls.device_type).device_count()  # type: ignore[no-any-return]


class CPUAccelerator(Accelerator):
    """The CPU."""

    name = device_type = "cpu"

    @classmethod
    def auto_device_count(cls) -> int:
        return 1


class CUDAAccelerator(Accelerator):
    """NVIDIA's GPUs, and AMD's."""

    name, device_type = "gpu", "cuda"


class MPSAccelerator(Accelerator):
    """Apple's GPU."""

    name = device_type = "mps"


def name_of(given: Any) -> Any:
    """An accelerator's name; what is none of these is passed on.

    Example:
        >>> name_of(CUDAAccelerator())
        'gpu'
    """
    return given.name if isinstance(given, Accelerator) else given


def accelerator_of(device: torch.device) -> Accelerator:
    """The accelerator of a device.

    Example:
        >>> accelerator_of(torch.device("cpu")).name
        'cpu'
    """
    kinds = (CPUAccelerator, CUDAAccelerator, MPSAccelerator)
    found = Accelerator()
    found.name = found.device_type = device.type
    return next((kind() for kind in kinds if kind.device_type == device.type), found)


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """The first GPUs, for ``devices=``.

    Args:
        num_devices: How many; -1: all.

    Raises:
        ValueError: where there are fewer.

    Example:
        >>> find_usable_cuda_devices(0)
        []
    """
    count = torch.cuda.device_count()
    if num_devices > count:
        raise ValueError(f"You requested to find {num_devices} devices but there are only {count} devices.")
    return list(range(count if num_devices < 0 else num_devices))


def num_cuda_devices() -> int:
    """How many GPUs there are.

    Example:
        >>> num_cuda_devices() == torch.cuda.device_count()
        True
    """
    return torch.cuda.device_count()


def __getattr__(name: str) -> Any:
    way = 'Trainer(accelerator="cpu", "gpu" or "mps")'
    no_tpu = "another accelerator: no TPU is offered"
    return refuse_import(__name__, name, {name: no_tpu if name.startswith(("XLA", "TPU")) else way})
