"""``seed_everything`` with Lightning's arguments."""

from __future__ import annotations

import os

from .....trainer.rng import seed_everything as seed_all


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed torch, ``random`` and numpy.

    Args:
        seed: None takes ``PL_GLOBAL_SEED`` of the environment, else 0.
        workers: Accepted: workers of loaders are always seeded.
        verbose: Accepted.

    Returns:
        The seed.
    """
    chosen = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else int(seed)
    os.environ["PL_GLOBAL_SEED"] = str(chosen)
    seed_all(chosen)
    return chosen
