"""``SingleDeviceStrategy`` with Lightning's arguments."""

from __future__ import annotations

from typing import Any

from .....strategies import Single
from .named import LightningStrategy


class SingleDeviceStrategy(Single, metaclass=LightningStrategy):
    """One device.

    Args:
        device: Accepted: the Trainer's ``accelerator`` and ``devices`` say which.
        accelerator: Accepted.
        checkpoint_io: Accepted.
        precision_plugin: Accepted.
    """

    def __init__(
        self,
        device: Any = "cpu",
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
    ) -> None:
        super().__init__()
