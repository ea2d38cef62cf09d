"""Numbers and errors as people read them."""

from __future__ import annotations


def shown_size(count: int) -> str:
    """A number of bytes as people read it.

    Example:
        >>> shown_size(1_500_000_000)
        '1.5 GB'
    """
    power = max(p for p in range(4) if count >= 1000**p or p == 0)
    return f"{count / 1000**power:.4g} {('B', 'kB', 'MB', 'GB')[power]}"


def first_line(error: BaseException) -> str:
    r"""An error's kind and the first line of its message.

    Example:
        >>> first_line(ValueError("no\nyes"))
        'ValueError: no'
    """
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def shown_seconds(seconds: float) -> str:
    """A duration as people read it.

    Example:
        >>> [shown_seconds(value) for value in (0.25, 75, 4000, 200_000)]
        ['0.25 s', '1 min 15 s', '1 h 6 min', '2 d 7 h']
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = int(seconds)
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {small}"
    return f"{whole} s"
