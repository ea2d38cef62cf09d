"""Lightning's plugin for batch norms over all ranks."""

from __future__ import annotations

from typing import Any

from .plugin import Plugin

__all__ = ["LayerSync", "TorchSyncBatchNorm"]


class LayerSync(Plugin):
    """Layers that compute over all ranks."""


class TorchSyncBatchNorm(LayerSync):
    """Batch norms."""

    def as_arguments(self) -> dict[str, Any]:
        return {"sync_batchnorm": True}
