"""curves.png: loss, metrics, learning rate and throughput of a run, drawn when it ends."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..argument_checks import COUNT, check_arguments
from .base import Callback
from .loggers.json_lines import read_rows

if TYPE_CHECKING:
    from .trainer_view import TrainerView

_PANELS = ("loss", "metrics", "learning rate", "samples/s")


class Curves(Callback):
    """Draws ``metrics.jsonl`` of the run folder at the end, after an interrupt and after an error.

    Args:
        dpi: Dots per inch of the picture.

    Example:
        >>> trainer = Trainer(callbacks=Curves(dpi=300))  # in place of the default one
    """

    def __init__(self, dpi: int = 120) -> None:
        check_arguments("Curves", dpi=(dpi, COUNT))
        self.dpi = dpi

    def on_teardown(self, trainer: TrainerView, stage: str) -> None:
        if stage == "fit" and trainer.folder is not None and trainer.is_global_zero:
            rows = trainer.folder / "metrics.jsonl"
            if rows.exists() and rows.stat().st_size:
                draw(rows, trainer.folder / "curves.png", self.dpi)


def draw(rows: Path, picture: Path, dpi: int = 120) -> None:
    """Draw a ``metrics.jsonl`` into a PNG. Panels without a value are not drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _sorted_into_panels(rows)
    used = [name for name in _PANELS if panels[name]]
    if not used:
        return
    columns = min(2, len(used))
    lines = -(-len(used) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.4 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, panel in zip(axes, used, strict=False):
        for name, points in sorted(panels[panel].items()):
            steps, values = zip(*points, strict=True)
            marker = "." if len(points) < 60 else None
            axis.plot(steps, values, label=name, marker=marker, linewidth=1.4)
        axis.set_title(panel)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        if panel != "samples/s":
            axis.legend(fontsize=8)
    for axis in axes[len(used) :]:
        axis.set_visible(False)
    figure.savefig(picture, dpi=dpi)


def _sorted_into_panels(rows: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {name: defaultdict(list) for name in _PANELS}
    for row in read_rows(rows):
        for name, value in row.items():
            if "/" in name:
                panels[_panel(name)][name].append((row["step"], float(value)))
    return panels


def _panel(name: str) -> str:
    if name.startswith("lr/"):
        return "learning rate"
    if name.startswith("perf/"):
        return "samples/s"
    return "loss" if "loss" in name else "metrics"
