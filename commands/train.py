"""``paceline fit``, ``validate``, ``test`` and ``predict``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import PacelineError
from .output import JSON, print_json
from .recipes import show
from .targets import CONFIG, SETTINGS, TARGET, is_script, load_target, weights_for

if TYPE_CHECKING:
    from ..config import Experiment

_WEIGHTS = Annotated[
    str | None,
    typer.Option(
        help="A checkpoint's or run's folder; else the best, else latest, of TARGET, or of the newest run "
        "of its name."
    ),
]


def _help(context: typer.Context, wanted: bool) -> None:
    """The help of this command; with a target in front of it, its settings."""
    if not wanted:
        return
    typer.echo(context.get_help())
    words = sys.argv[2:]
    of_options = {n + 1 for n, word in enumerate(words) if word in ("--config", "--resume")}
    target = next((w for n, w in enumerate(words) if w[:1] != "-" and n not in of_options), None)
    if target is not None:
        typer.echo()
        if is_script(target):
            typer.echo(f"{target} is a script, which is run as `python {target}` and has no settings here")
        else:
            show(target)
    raise typer.Exit


def fit(
    target: TARGET,
    settings: SETTINGS = None,
    config: CONFIG = None,
    resume: Annotated[
        str | None, typer.Option(help="auto, latest, best, or a checkpoint's or run's folder.")
    ] = None,
    help: Annotated[
        bool,
        typer.Option(
            "--help", "-h", callback=_help, is_eager=True, help="Show this, and a recipe's settings."
        ),
    ] = False,
) -> None:
    """Train a recipe, a module by its import path, a config, or a script; a run's config.yaml repeats it.

    Settings come from a preset, --config files, PACELINE_* variables, key=value: a later one takes
    precedence. `paceline recipes show NAME` lists those of a recipe.
    """
    if is_script(target):
        if settings or config or resume:
            from ..trainer.utils.secrets import masked_command

            raise PacelineError(
                f"{target} is a script, which reads no settings of ours",
                code="script-without-settings",
                got=" ".join(masked_command(sys.argv[3:])),
                fix=f"python {target}; or give it a class Config(RunConfig) and build(config): "
                "`paceline recipes copy` writes an example",
            )
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, target])
    from ..trainer.utils.paths import shown_path

    experiment, _ = _experiment(target, config, settings)
    run = experiment.fit(resume)
    trainer = experiment.trainer
    if trainer.folder is None or not trainer.is_global_zero:
        return
    for callback in trainer.callbacks:
        score, monitor = getattr(callback, "best_score", None), getattr(callback, "monitor", None)
        if score is not None and monitor is not None and run.best is not None:
            typer.echo(f"best {monitor} {score:.4g}, kept in {shown_path(run.best)}")


def _evaluation(verb: str, about: str) -> Callable[..., None]:
    """The command that evaluates: ``validate`` or ``test``."""

    def evaluate(
        target: TARGET,
        settings: SETTINGS = None,
        config: CONFIG = None,
        weights: _WEIGHTS = None,
        as_json: JSON = False,
    ) -> None:
        experiment, run = _experiment(target, config, settings)
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # the run's own lines
            found = weights_for(experiment, weights, run)
            values: dict[str, Any] = experiment.evaluate(verb, found)
            if experiment.trainer.is_global_zero:
                _name_weights(found)
        if as_json and experiment.trainer.is_global_zero:
            print_json(values)

    evaluate.__name__, evaluate.__doc__ = verb, about
    return evaluate


validate = _evaluation("validate", "Evaluate weights on the validation data.")
test = _evaluation("test", "Evaluate weights on the test data; on the validation data where there is none.")


def predict(
    target: TARGET,
    out: Annotated[Path, typer.Option(help="The folder that the predictions are written to.")],
    settings: SETTINGS = None,
    config: CONFIG = None,
    weights: _WEIGHTS = None,
) -> None:
    """Write the outputs for the data to predict, else the test or validation data, in its order."""
    experiment, run = _experiment(target, config, settings)
    found = weights_for(experiment, weights, run)
    experiment.evaluate("predict", found, out=out)
    if experiment.trainer.is_global_zero:
        _name_weights(found)
        typer.echo(str(out))


def _experiment(
    target: str, config: list[Path] | None, settings: list[str] | None
) -> tuple[Experiment, Path | None]:
    """What is built, and the run that the target is, where it is one."""
    loaded = load_target(target, config, settings)
    experiment: Experiment = loaded.recipe.build_experiment(loaded.checked())
    return experiment, loaded.run


def _name_weights(path: Path) -> None:
    from ..trainer.utils.paths import shown_path

    typer.echo(f"weights: {shown_path(path)}")
