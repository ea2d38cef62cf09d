"""The CRC-32 that checkpoints, batches and data are compared by: zlib's, computed several times as fast."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # it has no wheel for every processor
    from zlib import crc32

__all__ = ["crc32"]
