"""Models of transformers built again from their weights alone, and adapters of peft merged into them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import PacelineError
from ..utils.paths import writing
from .pretrained import ADAPTER_CONFIG


def rebuilt(described: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """The model of a part on the CPU, in 32 bits and in evaluation mode; no code but its libraries' is run.

    Args:
        described: What ``describe_parts`` says of the part.
        tensors: Its state dict; of tied weights one name is enough.

    Raises:
        PacelineError: where its class is none of transformers, and where weights are missing.
    """
    import transformers

    base = described.get("base", described)
    content = json.loads(base.get("config") or "{}")
    cls = getattr(transformers, str(base.get("class")), None)
    if cls is None or getattr(cls, "config_class", None) is None:
        raise PacelineError(
            "the model cannot be built from the checkpoint alone",
            code="export-not-possible",
            got=f"class {base.get('class')}",
            allowed="classes of transformers",
            fix="load_from_checkpoint(path) of the module, and merge_and_unload() of its model",
        )
    if "quantization_config" in content:
        raise PacelineError(
            "the base is quantized, and its weights are in no checkpoint",
            code="export-not-possible",
            fix="load the base in full precision with the exported adapter, and merge_and_unload()",
        )
    model = cls(cls.config_class.from_dict(content))
    if "adapters" in described:
        model = _with_adapters(model, {name: one["config"] for name, one in described["adapters"].items()})
    _load(model, tensors)
    return model.eval()


def _with_adapters(model: Any, configs: dict[str, str]) -> Any:
    from peft import PeftConfig, get_peft_model

    for name, text in configs.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / ADAPTER_CONFIG).write_text(text, encoding="utf-8")
            config: Any = PeftConfig.from_pretrained(folder)
        config.base_model_name_or_path = None  # it is here
        if hasattr(config, "init_lora_weights"):
            config.init_lora_weights = True  # others are computed from the base; all are loaded
        if hasattr(model, "peft_config"):
            model.add_adapter(name, config)
        else:
            model = get_peft_model(model, config, adapter_name=name)
    return model


def _load(model: Any, tensors: dict[str, Tensor]) -> None:
    result = model.load_state_dict(tensors, strict=False)
    own = model.state_dict()
    loaded = {own[name].data_ptr() for name in tensors if name in own}
    missing = [name for name in result.missing_keys if own[name].data_ptr() not in loaded]  # but tied ones
    if missing or result.unexpected_keys:
        raise PacelineError(
            "the checkpoint has other weights than its model",
            code="checkpoint-mismatch",
            got=", ".join([*missing, *result.unexpected_keys][:6]),
        )


def save_merged(
    described: dict[str, Any], tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype | None = None
) -> str:
    """Write a model with its adapter merged into it, as ``from_pretrained`` of transformers reads it.

    The sums are computed in float32.

    Args:
        described: What ``describe_parts`` says of the part.
        tensors: Its state dict.
        folder: Made if it does not exist.
        dtype: Of the weights in the file; None: of the base's.

    Returns:
        What was done, for the user.

    Raises:
        PacelineError: for a part without an adapter, and as ``rebuilt``.
    """
    if "adapters" not in described:
        raise PacelineError("there is no adapter of peft to be merged", code="export-not-possible")
    adapted = {name for one in described["adapters"].values() for name in one["tensors"].values()}
    base = (value for name, value in tensors.items() if name not in adapted and value.is_floating_point())
    chosen = dtype or next(base).dtype
    model = rebuilt(described, tensors).merge_and_unload().to(chosen)
    with writing("the weights", folder):
        model.save_pretrained(str(folder))
    return f"merged in float32, saved as {str(chosen).removeprefix('torch.')}"
