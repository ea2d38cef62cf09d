"""A config file with a comment for each key."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import PacelineError

COMMENTS = {
    "accelerator": "where each rank computes: auto, cpu, gpu, or a device type",
    "devices": "ranks on each machine: a count, ids, or auto for all",
    "num_nodes": "machines",
    "strategy": "how the ranks share model and gradients: a name, or a class with its arguments",
    "precision": "dtypes of parameters and products",
    "accumulate": "micro-batches in a step",
    "global_batch_size": "samples in a step, on all ranks together",
    "clip_grad_norm": "the largest norm of a step's gradients",
    "compile": "torch.compile: true, a mode, blocks, or its arguments",
    "debug": "check that all ranks call the same collectives",
    "numa_affinity": "each rank on the processors nearest to its device",
}
"""What each key is; in the order of a file."""


def config_text(trainer: dict[str, Any], head: Sequence[str], tail: Sequence[str] = ()) -> str:
    """The text of a config file.

    Args:
        trainer: Arguments of ``Trainer``.
        head: Lines of a comment at the top.
        tail: Lines of a comment at the end.
    """
    lines = [f"# {line}".rstrip() for line in head] + ["trainer:" if trainer else "trainer: {}"]
    for key in sorted(trainer, key=[*COMMENTS].index):
        lines.append(f"  # {COMMENTS[key]}")
        block = yaml.safe_dump(
            {key: trainer[key]}, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1000
        )
        lines += [f"  {line}" for line in block.splitlines()]
    return "\n".join([*lines, *(f"# {line}".rstrip() for line in tail)]) + "\n"


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
        raise PacelineError(f"{file} cannot be written", got=str(error.strerror)) from None
