"""curves.png: loss, metrics, learning rate and throughput of a run, drawn when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..argument_checks import COUNT, check_arguments
from .base import Callback
from .loggers.json_lines import read_rows
from .panels import in_order

if TYPE_CHECKING:
    from .trainer_view import TrainerView


class Curves(Callback):
    """Draws ``metrics.jsonl`` of the run folder at the end, after an interrupt and after an error.

    A panel shows one metric, with training and validation together. There are 9 at most; the learning rate
    and the samples per second are among them.

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
                try:
                    draw(rows, trainer.folder / "curves.png", self.dpi)
                except Exception as error:  # the run is over, and nothing else of it depends on this
                    trainer.log_line(
                        f"warning: curves.png could not be drawn: {type(error).__name__}: {error}"
                    )


def draw(rows: Path, picture: Path, dpi: int = 120) -> None:
    """Draw a ``metrics.jsonl`` into a PNG; none where there is no value."""
    from .picture import draw_panels, lines_of
    from .series import read_series

    panels = lines_of(read_series(read_rows(rows)))
    if panels:
        run = rows.resolve().parent
        ordered = {panel: panels[panel] for panel in in_order(panels)}
        draw_panels(ordered, picture, title=f"{run.parent.name}/{run.name}", dpi=dpi)
