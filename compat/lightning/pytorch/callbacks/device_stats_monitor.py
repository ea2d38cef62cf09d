"""``DeviceStatsMonitor`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from ..... import callbacks as ours
from .callback import Callback
from .overrides import refuse_overrides


class DeviceStatsMonitor(Callback):
    """Writes memory and load of devices and machines.

    Args:
        cpu_stats: False: of the device alone.
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self.cpu_stats = cpu_stats

    def ours(self, trainer: Any) -> list[Any]:
        refuse_overrides(self, DeviceStatsMonitor)
        return [ours.DeviceMonitor(max(trainer.log_every_n_steps, 1), host=self.cpu_stats is not False)]
