"""Reads a configuration of another trainer, whose ever it is."""

from __future__ import annotations

from pathlib import Path

from ...errors import PacelineError
from .accelerate import read_accelerate
from .accelerate_names import READ_TOP, TOP
from .deepspeed import read_deepspeed
from .deepspeed_names import DROPPED, KEPT, RUN
from .files import read_places
from .finetuning.axolotl import read_axolotl
from .finetuning.draft import SettingsOf
from .finetuning.llama_factory import read_llama_factory
from .reading import Reading
from .section import whole_mapping

_ACCELERATE = {"compute_environment", "distributed_type", *TOP, *READ_TOP} - {"fp16"}
_DEEPSPEED = {"zero_optimization", *RUN, *KEPT, *DROPPED}
_AXOLOTL = ("base_model", "sequence_len", "micro_batch_size")
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
    keys = set(whole_mapping(text, str(file)))
    if sum(key in keys for key in _AXOLOTL) > 1 or "base_model" in keys:
        return read_axolotl(text, file, settings_of)
    if any(key in keys for key in _LLAMA_FACTORY):
        return read_llama_factory(text, file, settings_of)
    if "distributed_type" in keys or len(keys & _ACCELERATE) > len(keys & _DEEPSPEED):
        return read_accelerate(text, file, program)
    if keys & _DEEPSPEED:
        return read_deepspeed(text, file)
    raise PacelineError(
        "this is no configuration of Accelerate, DeepSpeed, LLaMA-Factory or Axolotl",
        where=str(file),
        got="the keys " + ", ".join(sorted(keys)[:8]),
        allowed="a file with distributed_type, as accelerate config writes it, DeepSpeed's JSON, or a YAML "
        "file with model_name_or_path (LLaMA-Factory) or base_model (Axolotl)",
    )
