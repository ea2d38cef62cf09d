"""``paceline plot``, ``report`` and ``plot-lr``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .output import JSON, print_json


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders above.")],
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this value or panel: val/loss, or loss. Repeatable.")
    ] = None,
    x: Annotated[str, typer.Option(help="step, epoch, time, samples or tokens.")] = "step",
    out: Annotated[
        Path | None, typer.Option(help="The picture: curves.png, in the folder of a single run.")
    ] = None,
) -> None:
    """Draw the curves of runs into one picture."""
    from ..tools.report.picture import plot_runs

    typer.echo(plot_runs(runs, out, metric or [], x))


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders above.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page: report.html; with --json none, unless this is given."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Write one HTML page about runs: charts, values, differences, checkpoints, warnings."""
    from ..tools.report.page import write_page
    from ..tools.report.plain import report_of
    from ..tools.report.summary import summarize
    from ..trainer.run.find import find_runs

    found = summarize(find_runs(runs))
    if out is not None or not as_json:
        typer.echo(write_page(found, out or "report.html"), err=as_json)
    if as_json:
        print_json(asdict(report_of(found)))


def plot_lr(
    schedule: Annotated[str, typer.Argument(help="constant, linear, cosine or wsd.")],
    options: Annotated[list[str] | None, typer.Argument(help="Its arguments: warmup=5% end=0.1")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the run.")] = 1000,
    epoch: Annotated[int | None, typer.Option(min=1, help="Optimizer steps in an epoch.")] = None,
    lr: Annotated[float, typer.Option(min=0.0, help="The optimizer's learning rate.")] = 1.0,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("lr.png"),
) -> None:
    """Draw a learning rate schedule, without a run."""
    from ..optimizers.schedule_plot import plot, read_options
    from ..schedules import RunLength, make_schedule

    made, length = make_schedule(schedule, **read_options(options or [])), RunLength(steps, epoch)
    plot(made, out, length, lr)
    for step in sorted({1, steps // 10, steps // 2, steps * 9 // 10, steps} - {0}):
        typer.echo(f"step {step:>9}  {lr * made.factor(step - 1, length):.6g}")
    typer.echo(out)
