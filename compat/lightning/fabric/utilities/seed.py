"""``seed_everything``."""

from __future__ import annotations

import os

from ...pytorch.trainer import seed_everything

__all__ = ["reset_seed", "seed_everything"]


def reset_seed() -> None:
    """Seed all generators again, as the last ``seed_everything`` did; nothing without one."""
    if "PL_GLOBAL_SEED" in os.environ:
        seed_everything(int(os.environ["PL_GLOBAL_SEED"]))
