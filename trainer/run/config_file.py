"""config.yaml of a run: what its Trainer and module were built with, and what a resume has changed."""

from __future__ import annotations

import os
from argparse import Namespace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from ...callbacks.loggers.flat import flat_config
from ...common.remote_paths import url_of
from ...errors import shown
from ...strategies import Strategy
from ..utils.paths import writing
from ..utils.secrets import masked


def run_config(name: str, settings: Any, strategy: Strategy, module: Any) -> dict[str, Any]:
    """The resolved configuration without secrets, as plain data for config.yaml."""
    trainer = {field: plain_data(getattr(settings, field)) for field in type(settings).model_fields}
    if settings.run_dir is not None:
        trainer["run_dir"] = url_of(Path(settings.run_dir)) or trainer["run_dir"]
    config: dict[str, Any] = {
        "name": name,
        "trainer": trainer | {"strategy": strategy.name, "precision": strategy.precision.name},
        "module": {
            "class": f"{type(module).__module__}:{type(module).__qualname__}",
            "hparams": {field: plain_data(value) for field, value in module.hparams.items()},
        },
    }
    if settings.source is not None:  # read again by `paceline fit .../config.yaml`
        given = plain_data(settings.source)
        config["config"] = given | {"trainer": {"seed": settings.seed} | given.get("trainer", {})}
    found: dict[str, Any] = masked(config)
    return found


def note_settings(folder: Path, config: dict[str, Any], checkpoint: str) -> list[str]:
    """Have config.yaml hold the settings of now, and under ``resumed`` those that were others before.

    Args:
        folder: Of the run.
        config: As ``run_config`` gives it.
        checkpoint: The name of the one that is resumed.

    Returns:
        What is another setting than before, in words.
    """
    try:
        before = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
        parts = ({key: dict(one[key]) for key in ("trainer", "module")} for one in (before, config))
        then, now = map(flat_config, parts)
    except (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, KeyError, AttributeError):
        return []  # damaged, which is no reason to end
    others = {n: then.get(n) for n in dict.fromkeys([*then, *now]) if then.get(n) != now.get(n)}
    if others:
        earlier = before.get("resumed")
        resumed = [*(earlier if isinstance(earlier, list) else []), {"from": checkpoint, "before": others}]
        kept = {"parent": before["parent"]} if "parent" in before else {}
        with writing("the run folder", folder):
            write_config(folder, config | kept | {"resumed": resumed})
    plain = {n: [shown(one.get(n)).strip("'\"") for one in (then, now)] for n in others}
    return [f"{n.partition('.')[2]} {was}, now {one}" for n, (was, one) in plain.items()]


def plain_data(value: Any) -> Any:
    """Plain data as it is, anything else by its type's name."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (float, int)):  # numpy's, and enumerations
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, (dict, Namespace)):
        items = vars(value) if isinstance(value, Namespace) else value
        return {str(key): plain_data(item) for key, item in items.items()}
    return str(value) if isinstance(value, (str, Path, timedelta)) else type(value).__name__


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """config.yaml: the resolved configuration of the run."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, in C: milliseconds less
    text = yaml.dump(config, Dumper=dumper, sort_keys=False, allow_unicode=True)
    if "config" in config:
        text = f"# `paceline fit` with this file reads `config`: change values there.\n{text}"
    staging = folder / f".config.yaml.{os.getpid()}"
    staging.write_text(text, encoding="utf-8")
    staging.replace(folder / "config.yaml")
