"""curves.png: loss, metrics, learning rate and throughput of a run, drawn when it ends.

    python -m paceline.callbacks.pictures.curves METRICS.JSONL PICTURE.PNG DPI

is what a run starts: matplotlib takes a second or two to load, for which ``fit`` does not wait.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.argument_checks import COUNT, check_arguments
from ...common.remote_paths import url_of
from ..base import Callback
from ..loggers.series import read_rows, read_series
from .panels import in_order

if TYPE_CHECKING:
    from ..trainer_view import TrainerView

_SECONDS = 120  # that a process at its end waits for its pictures


class Curves(Callback):
    """Draws ``metrics.jsonl`` of the run folder at the end, after an interrupt and after an error.

    A panel shows one metric, with training and validation together. There are 9 at most; the learning rate
    and the samples per second are among them.

    A process draws, and ``fit`` returns meanwhile, with a line that says so; the script's own process waits
    for it at its end. In a run folder that is sent to an object store, ``fit`` waits. What goes wrong is in
    ``log.txt``.

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
            rows = (trainer.folder / "metrics.jsonl").absolute()
            if rows.exists() and rows.stat().st_size:
                try:
                    start_drawing(rows, rows.with_name("curves.png"), self.dpi)
                except OSError as error:  # the run is over, and nothing else of it depends on this
                    trainer.log_line(_warning(error))
                    return
                if url_of(rows) is not None:
                    wait_for_pictures()
                else:
                    trainer.log_line("curves.png is being drawn; at its end this process waits for it")


_drawing: list[subprocess.Popen[bytes]] = []


def start_drawing(rows: Path, picture: Path, dpi: int) -> None:
    """Draw in a process, which a Ctrl-C or the end of this one does not end.

    Raises:
        OSError: when no process can be started.
    """
    _drawing[:] = [one for one in _drawing if one.poll() is None]
    command = [sys.executable, "-m", __name__, str(rows), str(picture), str(dpi)]
    paths = os.pathsep.join(filter(None, sys.path))
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command,
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        env=os.environ | {"PYTHONPATH": paths},
        start_new_session=True,
    )
    _drawing.append(process)


def wait_for_pictures() -> None:
    """Wait until what was started is drawn."""
    deadline = time.monotonic() + _SECONDS
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        while _drawing:
            _drawing[-1].wait(max(0, deadline - time.monotonic()))
            _drawing.pop()


atexit.register(wait_for_pictures)


def draw(rows: Path, picture: Path, dpi: int = 120) -> None:
    """Draw a ``metrics.jsonl`` into a PNG; none where there is no value."""
    from .picture import draw_panels, lines_of

    panels = lines_of(read_series(read_rows(rows)))
    if panels:
        run = rows.resolve().parent
        ordered = {panel: panels[panel] for panel in in_order(panels)}
        draw_panels(ordered, picture, title=f"{run.parent.name}/{run.name}", dpi=dpi)


def draw_or_log(rows: Path, picture: Path, dpi: int) -> None:
    """Draw, and write into ``log.txt`` beside the rows why there is no picture."""
    staging = picture.with_name(f".{picture.name}")  # who looks meanwhile sees no half of it
    try:
        draw(rows, staging, dpi)
        if staging.exists():
            staging.replace(picture)
    except Exception as error:
        with suppress(OSError), rows.with_name("log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {_warning(error)}\n")


def _warning(error: Exception) -> str:
    return f"warning: curves.png could not be drawn: {type(error).__name__}: {error}"


if __name__ == "__main__":
    draw_or_log(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
