"""``paceline estimate``: whether a training run fits its devices, and how fast it would be."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from ..errors import PacelineError
from .output import JSON, print_json
from .targets import CONFIG, SETTINGS, TARGET, load_target, require_own_folder

_DEVICES = typer.Option(min=1, help="How many devices, of all machines.")
_PER_NODE = typer.Option(min=1, help="Devices of a machine; 8 unless given.")
_MEMORY = typer.Option(help='Of each device: "80GiB".')
_GPU = typer.Option(help='A device by name, for its memory and speed: "H100".')
_ASSUME = typer.Option(metavar="NAME=VALUE", help="network=12.5e9 attainable=0.5 ... Repeatable.")
_TRUST = typer.Option("--trust", help="Build what the folder of another user's or host's run names.")
_PICTURE = typer.Option(metavar="PNG", help="Draw the memory of each strategy.")


def estimate(
    target: TARGET,
    settings: SETTINGS = None,
    config: CONFIG = None,
    devices: Annotated[int | None, _DEVICES] = None,
    per_node: Annotated[int | None, _PER_NODE] = None,
    memory: Annotated[str | None, _MEMORY] = None,
    gpu: Annotated[str | None, _GPU] = None,
    assume: Annotated[list[str] | None, _ASSUME] = None,
    picture: Annotated[Path | None, _PICTURE] = None,
    trust: Annotated[bool, _TRUST] = False,
    as_json: JSON = False,
) -> None:
    """Show the memory and the modelled speed of each strategy, and recommend one.

    A step of the first batch is traced without allocating anything; no device is needed. With neither
    --devices nor --gpu nor --memory, for the devices here. Recipes of language models need of model= its
    config.json alone, and take rows of their full length.
    """
    from ..config import for_shapes
    from ..tools.run_estimate import estimate as run_estimate

    require_own_folder(target, trust)
    assumed = dict(map(_assumption, assume or []))
    here = [] if devices is None else ["trainer.devices=1"]
    loaded = load_target(target, config, [*here, *(settings or [])])
    with for_shapes(), warnings.catch_warnings():  # nothing starts the workers here
        warnings.filterwarnings("ignore", "This DataLoader will create")
        experiment = loaded.recipe.build_experiment(loaded.checked())
        found = run_estimate(
            experiment.trainer,
            experiment.module,
            experiment.train,
            experiment.datamodule,
            devices=devices,
            per_node=per_node,
            memory=memory,
            gpu=gpu,
            assume=assumed,
        )
    if picture is not None:
        found.draw(picture)
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(str(found))


def _assumption(given: str) -> tuple[str, float]:
    name, _, value = given.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise PacelineError(
            "--assume takes a name and a number",
            code="invalid-value",
            got=given,
            fix="--assume network=12.5e9",
        ) from None
