"""Reads a configuration of another trainer, whose ever it is."""

from __future__ import annotations

from pathlib import Path

from ...errors import PacelineError
from .accelerate import read_accelerate
from .accelerate_names import READ_TOP, TOP
from .deepspeed import read_deepspeed
from .deepspeed_names import DROPPED, KEPT, RUN
from .files import read_places
from .reading import Reading
from .section import whole_mapping

_ACCELERATE = {"compute_environment", "distributed_type", *TOP, *READ_TOP} - {"fp16"}
_DEEPSPEED = {"zero_optimization", *RUN, *KEPT, *DROPPED}


def read_configuration(file: Path, program: str = "train.py") -> Reading:
    """What a configuration of Accelerate or DeepSpeed is here; its content says whose it is.

    Args:
        file: A YAML or JSON file.
        program: What Python runs on each machine, for ``Reading.launch``: a script, or ``-m module``.

    Raises:
        PacelineError: where it cannot be read, is neither, and for values that are wrong.

    Example:
        >>> reading = read_configuration(Path("default_config.yaml"))
        >>> reading.trainer
        {'accelerator': 'gpu', 'devices': 2, 'precision': 'bf16', 'strategy': 'ddp'}
    """
    text = read_places(file)
    keys = set(whole_mapping(text, str(file)))
    if "distributed_type" in keys or len(keys & _ACCELERATE) > len(keys & _DEEPSPEED):
        return read_accelerate(text, file, program)
    if keys & _DEEPSPEED:
        return read_deepspeed(text, file)
    raise PacelineError(
        "this is neither a configuration of Accelerate nor one of DeepSpeed",
        where=str(file),
        got="the keys " + ", ".join(sorted(keys)[:8]),
        allowed="a file with distributed_type, as accelerate config writes it, or DeepSpeed's JSON",
    )
