"""``paceline plot``: the curves of one run or several in one PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...callbacks.loggers.series import POSITION
from ...callbacks.pictures.picture import Line, draw_panels, lines_of
from ...errors import PacelineError, nearest
from ...trainer.run.find import find_runs
from ...trainer.utils.paths import as_path, writing
from .summary import chosen_panels, is_chosen, summarize

_FORMATS = (".png", ".pdf", ".svg", ".jpg")


def plot_runs(
    paths: Sequence[str | Path],
    out: str | Path | None = None,
    metrics: Sequence[str] = (),
    axis: str = "step",
) -> Path:
    """Draw runs into one PNG, overlaid.

    Args:
        paths: Folders of runs, or folders above.
        out: The picture; None: ``curves.png``, in the folder of the run where there is only one.
        metrics: Full names such as ``val/loss``, or titles of panels such as ``loss``; all where empty.
        axis: What the x axis shows: ``step``, ``epoch``, ``time``, ``samples`` or ``tokens``.

    Returns:
        The picture.

    Raises:
        PacelineError: where there is no run, no such metric or axis, or the runs have no such position.
    """
    if axis not in POSITION:
        allowed, meant = ", ".join(POSITION), nearest(axis, POSITION)
        raise PacelineError(
            "there is no such x axis", code="unknown-choice", got=axis, allowed=allowed, meant=meant
        )
    runs = summarize(find_runs(paths))
    order = chosen_panels(runs, metrics)
    panels: dict[str, list[Line]] = {panel: [] for panel in order}
    for family, run in enumerate(runs):
        chosen = [one for one in run.series if is_chosen(one.name, metrics)]
        for panel, lines in lines_of(chosen, axis, family).items():
            panels[panel] += lines
    drawn = {panel: lines for panel, lines in panels.items() if lines}
    if not drawn:
        raise PacelineError(
            f"the rows of these runs have no {axis}", code="not-in-run", fix="choose another --x"
        )
    several = len(runs) > 1
    picture = Path("curves.png" if several else runs[0].folder / "curves.png")
    picture = picture if out is None else as_path(out, "plot")
    if picture.is_dir():
        picture = picture / "curves.png"
    picture = picture if picture.suffix else picture.with_suffix(".png")
    if picture.suffix.lower() not in _FORMATS:
        raise PacelineError(
            "a picture of this kind cannot be written",
            code="unknown-choice",
            got=str(out),
            allowed=", ".join(_FORMATS),
        )
    names = [run.label for run in runs] if several else []
    title = f"{len(runs)} runs" if several else runs[0].label
    with writing("the picture", picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_panels(drawn, picture, title=title, axis=axis, families=names)
    return picture
