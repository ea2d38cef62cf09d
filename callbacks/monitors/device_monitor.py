"""What a run uses of its devices and machines."""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from ...common.argument_checks import STEPS, SWITCH, check_arguments
from ...durations import Duration, StepPosition
from ..base import Callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..trainer_view import TrainerView

_GB = 2**30
_OVER_RANKS: dict[str, Callable[[list[float]], float]] = {
    "device/utilization_percent": fmean,
    "device/power_w": fmean,
    "host/cpu_percent": fmean,
    "host/disk_free_gb": min,
}
"""How a value of all ranks becomes one; the highest of them where nothing is named."""


class DeviceMonitor(Callback):
    """Publishes memory, utilization and temperature of the devices, and the load of the machines.

    Of an accelerator ``device/memory_allocated_gb``, ``device/memory_reserved_gb`` and
    ``device/memory_peak_gb`` (the most allocated so far), of this process. Of a CUDA device through NVML,
    of all processes, ``device/utilization_percent``, ``device/temperature_c``, ``device/power_w`` and
    ``device/memory_total_gb``; these need ``pip install 'paceline[gpu]'``. Of the host
    ``host/cpu_percent`` since the last publication, ``host/memory_percent``, ``host/process_rss_gb``, and
    ``host/disk_free_gb`` where the run is written.

    A GB is 2**30 bytes. On several ranks a value is the highest of all; of utilization, power and CPU load
    it is the mean, of free disk space the lowest.

    Args:
        every: Steps between two publications: 50 or ``"50st"``.
        host: Publish values of the host.
        device: Publish values of the device.

    Raises:
        PacelineError: for arguments that are not right.

    Example:
        >>> trainer = Trainer(max_epochs=1, callbacks=DeviceMonitor(every=2), progress=False)
        >>> run = trainer.fit(Net(), train_loader)
        >>> sorted(name for name in trainer.metrics if name.startswith("host/"))
        ['host/cpu_percent', 'host/disk_free_gb', 'host/memory_percent', 'host/process_rss_gb']
    """

    def __init__(self, every: Any = 50, host: bool = True, device: bool = True) -> None:
        check_arguments("DeviceMonitor", every=(every, STEPS), host=(host, SWITCH), device=(device, SWITCH))
        self.every = int(Duration.parse(every).amount)
        self.host, self.device = host, device
        self._process: Any = None
        self._nvml: _NVML | None = None

    def on_fit_start(self, trainer: TrainerView) -> None:
        if self.host:
            import psutil

            self._process = psutil.Process()
            psutil.cpu_percent()  # the first call has nothing to compare with
        device = trainer.strategy.device
        if self.device and device.type == "cuda":
            try:
                self._nvml = _NVML(device)
            except Exception as error:  # not installed, no such library, no permission, no such device
                trainer.log_line(
                    "DeviceMonitor logs no utilization, temperature and power: NVML cannot be used "
                    f"({type(error).__name__}: {error}); it is in pip install 'paceline[gpu]'"
                )

    def next_due(self, at: StepPosition) -> float:
        return (at.global_step // self.every + 1) * self.every

    def on_step_end(self, trainer: TrainerView, outputs: list[Any]) -> None:
        if trainer.global_step % self.every:
            return
        everyone = trainer.ranks.all_gather(self._values(trainer))
        names = dict.fromkeys(name for values in everyone for name in values)
        trainer.publish(
            {n: _OVER_RANKS.get(n, max)([values[n] for values in everyone if n in values]) for n in names}
        )

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        self._process = None
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _values(self, trainer: TrainerView) -> dict[str, float]:
        device = trainer.strategy.device
        values: dict[str, float] = {}
        if self.device and device.type != "cpu":
            values["device/memory_allocated_gb"] = torch.accelerator.memory_allocated(device) / _GB
            values["device/memory_reserved_gb"] = torch.accelerator.memory_reserved(device) / _GB
            values["device/memory_peak_gb"] = torch.accelerator.max_memory_allocated(device) / _GB
        if self._nvml is not None:
            values |= self._nvml.values()
        if self.host:
            values |= self._of_host(trainer.folder)
        return values

    def _of_host(self, folder: Path | None) -> dict[str, float]:
        import psutil

        values = {
            "host/cpu_percent": psutil.cpu_percent(),
            "host/memory_percent": psutil.virtual_memory().percent,
            "host/process_rss_gb": self._process.memory_info().rss / _GB,
        }
        if folder is not None:
            values["host/disk_free_gb"] = psutil.disk_usage(str(folder)).free / _GB
        return values


class _NVML:
    """NVIDIA's management library for one device, by UUID: CUDA_VISIBLE_DEVICES reorders the numbers."""

    def __init__(self, device: torch.device) -> None:
        self._library: Any = importlib.import_module("pynvml")
        self._library.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        try:
            self._handle = self._library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        except BaseException:
            self._library.nvmlShutdown()
            raise

    def values(self) -> dict[str, float]:
        """What the device supports of it."""
        nvml, handle = self._library, self._handle
        reads: dict[str, Callable[[], float]] = {
            "device/utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "device/temperature_c": lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "device/power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "device/memory_total_gb": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total / _GB,
        }
        found: dict[str, float] = {}
        for name, read in reads.items():
            with suppress(nvml.NVMLError):
                found[name] = float(read())
        return found

    def close(self) -> None:
        """Leave the library."""
        self._library.nvmlShutdown()
