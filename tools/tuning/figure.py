"""The pictures of what a search found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...trainer.utils.paths import as_path


@contextmanager
def drawn(path: str | Path, title: str) -> Iterator[Any]:
    """The axes of a new picture, which is written at the end as a PNG; its folder is made.

    Args:
        path: The file.
        title: Stands above the axes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    target = as_path(path, "plot")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title)
    axes.grid(alpha=0.3)
    yield axes
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format="png", dpi=120)
