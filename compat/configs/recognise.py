"""Reads a configuration of another trainer, whose ever it is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ...errors import PacelineError
from .accelerate import read_accelerate
from .accelerate_names import READ_TOP, TOP
from .deepspeed import read_deepspeed
from .deepspeed_names import DROPPED, KEPT, RUN
from .files import read_places
from .finetuning.axolotl import SOURCE as AXOLOTL
from .finetuning.axolotl import read_axolotl
from .finetuning.draft import SettingsOf
from .finetuning.llama_factory import SOURCE as LLAMA_FACTORY
from .finetuning.llama_factory import read_llama_factory
from .reading import Reading
from .section import whole_mapping

_ACCELERATE = {"compute_environment", "distributed_type", *TOP, *READ_TOP} - {"fp16"}
_DEEPSPEED = {"zero_optimization", *RUN, *KEPT, *DROPPED}
_AXOLOTL = ("sequence_len", "micro_batch_size")
_LLAMA_FACTORY = (
    *("model_name_or_path", "finetuning_type", "stage", "cutoff_len", "dist_config", "train_dataset"),
    "peft_config",
)


def read_configuration(
    file: Path, program: str = "train.py", settings_of: SettingsOf = lambda _: ()
) -> Reading:
    """What a configuration of another trainer is here; its content says whose it is.

    Args:
        file: A YAML or JSON file of Accelerate, DeepSpeed, LLaMA-Factory or Axolotl.
        program: What Python runs on each machine, for ``Reading.launch``: a script, or ``-m module``.
        settings_of: The settings of our recipes, by name, for files that say what is trained.

    Raises:
        PacelineError: where it cannot be read, is none of these, and for values that are wrong.

    Example:
        >>> reading = read_configuration(Path("default_config.yaml"))
        >>> reading.trainer
        {'accelerator': 'gpu', 'devices': 2, 'precision': 'bf16', 'strategy': 'ddp'}
    """
    text = read_places(file)
    content = whole_mapping(text, str(file))
    source = source_of(content)
    if source == AXOLOTL:
        return read_axolotl(text, file, settings_of)
    if source == LLAMA_FACTORY:
        return read_llama_factory(text, file, settings_of)
    if source == "Accelerate":
        return read_accelerate(text, file, program)
    if source == "DeepSpeed":
        return read_deepspeed(text, file)
    raise PacelineError(
        "this is no configuration of Accelerate, DeepSpeed, LLaMA-Factory or Axolotl",
        code="config-of-others",
        where=str(file),
        got="the keys " + ", ".join(sorted(content)[:8]),
        allowed="a file with distributed_type, as accelerate config writes it, DeepSpeed's JSON, or a YAML "
        "file with model_name_or_path (LLaMA-Factory) or base_model (Axolotl)",
    )


def source_of(keys: Collection[str]) -> str | None:
    """Whose configuration has these keys; None: nobody's.

    Example:
        >>> source_of(["base_model", "datasets"])
        'Axolotl'
    """
    if "base_model" in keys or all(key in keys for key in _AXOLOTL):
        return AXOLOTL
    if any(key in keys for key in _LLAMA_FACTORY):
        return LLAMA_FACTORY
    found = set(keys)
    if "distributed_type" in keys or len(found & _ACCELERATE) > len(found & _DEEPSPEED):
        return "Accelerate"
    return "DeepSpeed" if found & _DEEPSPEED else None
