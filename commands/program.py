"""``paceline export --format``: the forward of a run's module as a program."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from ..errors import PacelineError
from .targets import load_target, require_own_folder


class ProgramFormat(StrEnum):
    """What other programs can run."""

    ONNX = "onnx"
    TORCH = "torch"


def export_run(source: Path, folder: Path, form: ProgramFormat, submodule: str | None, trust: bool) -> None:
    """Build a run's module and its data as ``paceline validate`` does, and write its forward.

    Args:
        source: A run, or one of its checkpoints.
        folder: Where the file goes.
        form: Which file.
        submodule: Only this part, by its dotted name.
        trust: Whether the folder may be of another user.

    Raises:
        PacelineError: where the run cannot be built again, and where the program is not the module's.
    """
    from ..tools.exported_program import export_program, find_call
    from ..trainer.checkpoint.listing import one_checkpoint

    checkpoint = one_checkpoint(source)
    run = checkpoint.parent.parent
    require_own_folder(str(run), trust)
    with redirect_stdout(sys.stderr):  # the lines of the evaluation
        experiment = _experiment(run)
        part, call = find_call(experiment.module, submodule, lambda: _evaluate(experiment, checkpoint))
        done = export_program(experiment.module, part, call, folder, form.value)
    typer.echo(str(done.file))
    what = f"{type(experiment.module).__name__}{'.' * bool(part)}{part}({done.inputs})"
    typer.echo(
        f"{what}: batches of {', '.join(map(str, done.sizes))} samples differ from the module's output "
        f"by at most {done.difference:.2g}",
        err=True,
    )
    if done.fixed:
        typer.echo(f"the batch size is fixed: {done.fixed}", err=True)


def _experiment(run: Path) -> Any:
    """What was trained, with a Trainer that evaluates one batch and writes nothing."""
    from .. import Trainer

    if not (run / "config.yaml").is_file():
        raise PacelineError("there is no config.yaml beside the checkpoint", where=str(run))
    loaded = load_target(str(run), None, ["trainer.devices=1"])
    experiment = loaded.recipe.build_experiment(loaded.checked())
    one = dict.fromkeys(("limit_val_batches", "limit_test_batches", "limit_predict_batches"), 1)
    quiet = Trainer(
        accelerator="cpu", devices=1, progress=False, loggers=False, checkpoint=False, run_dir=None, **one
    )
    return replace(experiment, trainer=quiet)


def _evaluate(experiment: Any, checkpoint: Path) -> None:
    """Load the weights that evaluations use, and call a step on its first batch."""
    from ..trainer.module import is_overridden

    verbs = ("validate", "test", "predict")
    steps = ("validation_step", "test_step", "predict_step")
    for verb, step in zip(verbs, steps, strict=True):
        if is_overridden(experiment.module, step):
            experiment.evaluate(verb, checkpoint)
            return
    raise PacelineError(
        f"{type(experiment.module).__name__} has no validation_step, which shows how forward is called"
    )
