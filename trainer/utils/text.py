"""Numbers as people read them."""

from __future__ import annotations


def shown_size(count: int) -> str:
    """A number of bytes as people read it.

    Example:
        >>> shown_size(1_500_000_000)
        '1.5 GB'
    """
    power = max(p for p in range(4) if count >= 1000**p or p == 0)
    return f"{count / 1000**power:.4g} {('B', 'kB', 'MB', 'GB')[power]}"
