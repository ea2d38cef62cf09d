"""A config file with a comment for each key."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ...errors import PacelineError

COMMENTS = {
    "accelerator": "where each rank computes: auto, cpu, gpu, or a device type",
    "devices": "ranks on each machine: a count, ids, or auto for all",
    "num_nodes": "machines",
    "strategy": "how the ranks share model and gradients: a name, or a class with its arguments",
    "precision": "dtypes of parameters and products",
    "fp32_precision": "of products of matrices in 32 bits",
    "accumulate": "micro-batches in a step",
    "global_batch_size": "samples in a step, on all ranks together",
    "clip_grad_norm": "the largest norm of a step's gradients",
    "max_epochs": "null: max_steps alone ends the run",
    "max_steps": "optimizer steps of the run",
    "validate_every": "steps, a part of an epoch, or null for never",
    "log_every": "steps between two log points",
    "callbacks": "added to those of the recipe; one of the same class replaces it",
    "loggers": "beside metrics.jsonl, TensorBoard's files and curves.png",
    "seed": "of the order of samples, and of new weights",
    "deterministic": "the same numbers each time, at the price of speed",
    "run_dir": "runs are folders in it",
    "name": "of the runs",
    "compile": "torch.compile: true, a mode, blocks, or its arguments",
    "debug": "check that all ranks call the same collectives",
    "numa_affinity": "each rank on the processors nearest to its device",
}
"""What each key is; in the order of a file."""


def config_text(
    trainer: dict[str, Any],
    head: Sequence[str],
    tail: Sequence[str] = (),
    settings: Mapping[str, Any] = {},
) -> str:
    """The text of a config file.

    Args:
        trainer: Arguments of ``Trainer``.
        head: Lines of a comment at the top.
        tail: Lines of a comment at the end.
        settings: The recipe, and its settings.
    """
    lines = [f"# {line}".rstrip() for line in head]
    lines += [line for key, value in settings.items() for line in _lines({key: value})]
    lines.append("trainer:" if trainer else "trainer: {}")
    for key in sorted(trainer, key=[*COMMENTS].index):
        lines.append(f"  # {COMMENTS[key]}")
        lines += [f"  {line}" for line in _lines({key: trainer[key]})]
    return "\n".join([*lines, *(f"# {line}".rstrip() for line in tail)]) + "\n"


def _lines(values: Mapping[str, Any]) -> list[str]:
    text: str = yaml.safe_dump(
        values, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1000
    )
    return text.splitlines()


def write_text(file: Path, text: str) -> None:
    """Write all of a file, or leave what was there.

    Raises:
        PacelineError: where it cannot be written.
    """
    target = file.expanduser().resolve()
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as opened:
                opened.write(text)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise PacelineError(
            f"{file} cannot be written", code="cannot-write", got=str(error.strerror)
        ) from None
