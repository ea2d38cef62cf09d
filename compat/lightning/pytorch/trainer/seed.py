"""``seed_everything`` with Lightning's arguments."""

from __future__ import annotations

import random

from .....trainer.rng import seed_everything as seed_all


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed torch, ``random`` and numpy.

    Args:
        seed: None draws one.
        workers: Accepted: workers of loaders are always seeded.
        verbose: Accepted.

    Returns:
        The seed.
    """
    chosen = random.randrange(2**32) if seed is None else int(seed)
    seed_all(chosen)
    return chosen
