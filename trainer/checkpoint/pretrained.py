"""Parts of a module that transformers and peft of Hugging Face load, in the files that these write.

Neither is imported: such parts are found by the public methods that they have.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import PacelineError

CONFIG, ADAPTER_CONFIG, ADAPTER_TENSORS = "config.json", "adapter_config.json", "adapter_model.safetensors"
ADAPTER_NAME = r"^[^./\\\x00][^/\\\x00]*$"
"""Of an adapter whose files can be described: it becomes the name of a folder."""
_DEFAULT = "default"  # the adapter whose files are in the folder itself; others have a folder each


INITIAL = "initial"
"""The name of an adapter that keeps what another one was in the beginning."""


def has_own_config(part: Any) -> bool:
    """Whether ``from_pretrained`` of its class reads it, with the ``config.json`` of its own config."""
    writes = getattr(getattr(part, "config", None), "save_pretrained", None)
    return (
        callable(writes) and callable(getattr(type(part), "from_pretrained", None)) and not is_adapted(part)
    )


def is_adapted(part: nn.Module) -> bool:
    """Whether it is a ``PeftModel``: a model with adapters, which are saved without it."""
    methods = (getattr(type(part), name, None) for name in ("get_base_model", "save_pretrained"))
    return _adapters(part) and all(map(callable, methods))


def _adapters(part: nn.Module) -> bool:
    found = getattr(part, "peft_config", None)
    return isinstance(found, Mapping) and bool(found)


def refuse_hidden_adapters(part: nn.Module, name: str) -> None:
    """Refuse a model that transformers would load without its weights: peft has renamed them.

    Raises:
        PacelineError: with the part to export in its place.
    """
    if has_own_config(part) and any(map(_adapters, part.modules())):
        raise hidden_adapters(name)


def hidden_adapters(name: str) -> PacelineError:
    """The error for a model whose weights have other names, as it holds adapters."""
    outer = name.removesuffix(".base_model.model")
    fix = f"export {outer!r}" if outer != name else "export the PeftModel"
    return PacelineError(
        f"{name!r} holds adapters of peft, and from_pretrained would give it random weights",
        code="export-not-possible",
        fix=f"{fix}, which writes the adapter; or call merge_and_unload() of it before",
    )


def save_own_config(part: nn.Module, folder: Path) -> None:
    """Write ``config.json`` as the part's ``from_pretrained`` reads it."""
    part.config.save_pretrained(str(folder))  # type: ignore[union-attr, operator]


def save_adapters(part: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the files that ``PeftModel.from_pretrained(base, folder)`` reads.

    Args:
        part: The ``PeftModel``.
        tensors: Its whole state dict.
        folder: Made if it does not exist.
    """
    configs = part.peft_config.values()  # type: ignore[union-attr, operator]
    rows = any(getattr(config, "trainable_token_indices", None) for config in configs)
    more = {"save_embedding_layers": False} if rows else {}  # else all rows, and the hub is asked
    part.save_pretrained(str(folder), state_dict=tensors, **more)  # type: ignore[operator]
    refer_to_base(folder)


def refer_to_base(folder: Path) -> None:
    """Write an adapter that took its beginning out of the base as one for the base as it was.

    PiSSA and OLoRA train W - s B0 A0 + s B A, which is W + s (B A - B0 A0): an adapter of twice the rank.
    A0 and B0 are those of an adapter named ``initial``; without one nothing is changed.

    Args:
        folder: With the files of the adapter, and those of ``initial`` below it, which are deleted.
    """
    from safetensors.torch import load_file, save_file

    if not (folder / INITIAL / ADAPTER_TENSORS).is_file():
        return
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    if not str(config.get("init_lora_weights")).startswith(("pissa", "olora")):
        return
    now, then = (load_file(place / ADAPTER_TENSORS) for place in (folder, folder / INITIAL))
    for name, before in then.items():
        if ".lora_" not in name:
            continue
        second = ".lora_B." in name
        now[name] = torch.cat([now[name], -before if second else before], dim=1 if second else 0)
    more = math.sqrt(2) if config.get("use_rslora") else 2
    config |= {
        "r": 2 * config["r"],
        "lora_alpha": more * config["lora_alpha"],
        "init_lora_weights": True,
    }
    save_file(now, folder / ADAPTER_TENSORS, {"format": "pt"})
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
    shutil.rmtree(folder / INITIAL)


# -- in checkpoints, for an export without the module ----------------------------------------------


def describe_parts(module: nn.Module) -> dict[str, dict[str, Any]]:
    """What a manifest keeps of such parts, by their names: the texts of their files, the tensors in them.

    ``{"config": text, "class": name}``, or ``{"adapters": {name: {"config": text, "tensors": {name in the
    file: name in the part}}}, "base": {"config": text, "class": name}}``; ``{"why_not": text}`` for one
    that cannot be exported from a checkpoint.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, part in module.named_modules():
        if name and (is_adapted(part) or has_own_config(part)):
            try:
                found[name] = describe(part, name)
            except Exception as error:  # of their libraries; no reason to lose a checkpoint
                found[name] = {"why_not": f"{type(error).__name__}: {error}"}
    return found


def describe(part: nn.Module, name: str) -> dict[str, Any]:
    """What ``describe_parts`` says of one.

    Args:
        part: A model of transformers, or a ``PeftModel``.
        name: Its dotted name.
    """
    with tempfile.TemporaryDirectory() as place:
        if is_adapted(part):
            base = getattr(part.base_model, "model", None)
            known = {"base": _own(base, Path(place))} if has_own_config(base) else {}
            return {"adapters": _described_adapters(part, Path(place)), **known}
        refuse_hidden_adapters(part, name)
        return _own(part, Path(place))


def _own(part: Any, folder: Path) -> dict[str, str]:
    save_own_config(part, folder)
    text = (folder / CONFIG).read_text(encoding="utf-8")
    (folder / CONFIG).unlink()
    theirs = [cls for cls in type(part).__mro__ if cls.__module__.startswith("transformers.")]
    return {"config": text, "class": (theirs or [type(part)])[0].__name__}  # strategies make subclasses


def _described_adapters(part: Any, folder: Path) -> dict[str, Any]:
    """What ``save_adapters`` would write: it is given a number for each tensor, and its files are read."""
    from safetensors.torch import load_file

    configs = part.peft_config
    if any(config.is_prompt_learning for config in configs.values()):
        raise PacelineError("a learned prompt is computed from several tensors", code="export-not-possible")
    if not all(re.match(ADAPTER_NAME, name) for name in configs):
        raise PacelineError(
            "the name of an adapter is no name of a folder", code="export-not-possible", got=list(configs)
        )
    names = list(part.state_dict())
    bases = {name: config.base_model_name_or_path for name, config in configs.items()}
    try:
        for config in configs.values():  # of a named base, peft asks the hub for the vocabulary
            config.base_model_name_or_path = None
        numbered = {name: torch.tensor(number) for number, name in enumerate(names)}
        part.save_pretrained(str(folder), state_dict=numbered)
    finally:
        for name, config in configs.items():
            config.base_model_name_or_path = bases[name]
    found = {}
    for adapter in configs:
        place = adapter_folder(folder, adapter)
        content = json.loads((place / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        content["base_model_name_or_path"] = bases[adapter]
        numbers = load_file(place / ADAPTER_TENSORS)
        found[adapter] = {
            "config": json.dumps(content, indent=2, sort_keys=True),
            "tensors": {name: names[int(number)] for name, number in numbers.items()},
        }
    return found


def adapter_folder(folder: Path, adapter: str) -> Path:
    """Where the files of an adapter are below an export."""
    return folder if adapter == _DEFAULT else folder / adapter
