"""``paceline estimate``: what a model's states need on each rank."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .output import JSON, print_json, print_table
from .targets import CONFIG, SETTINGS, TARGET, load_target


def estimate(
    target: TARGET,
    settings: SETTINGS = None,
    config: CONFIG = None,
    devices: Annotated[int, typer.Option(min=1, help="Ranks in all.")] = 1,
    as_json: JSON = False,
) -> None:
    """Show the memory that parameters, gradients and Adam's moments take on each rank, by strategy.

    Activations come on top; they depend on the batch.
    """
    from ..strategies import states_per_rank
    from ..trainer.utils.text import shown_size

    loaded = load_target(target, config, ["trainer.devices=1", *(settings or [])])
    module = loaded.recipe.build(loaded.checked()).module
    found = states_per_rank(module, devices)
    if as_json:
        print_json({name: asdict(one) | {"total": one.total} for name, one in found.items()})
        return
    parameters = sum(p.numel() for p in module.parameters())
    typer.echo(f"{parameters:,} parameters; on each of {devices} rank{'s' if devices > 1 else ''}:")
    rows = [(name, *map(shown_size, (*asdict(one).values(), one.total))) for name, one in found.items()]
    head = ("strategy", "parameters", "gradients", "optimizer", "gathered", "total")
    print_table(head, rows)
    typer.echo("activations come on top; they depend on the batch")
