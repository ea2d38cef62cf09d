"""What recipes for models of Hugging Face share: packages, vocabularies, and export."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo
from torch import nn

from paceline import PacelineError
from paceline.callbacks import Callback

TINY = "tiny"


def require_packages(recipe: str, *packages: str) -> None:
    """Raise for a package that cannot be imported.

    Raises:
        PacelineError: which says how to install it.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            known = package in ("transformers", "peft")
            fix = "pip install 'paceline[hf]'" if known else f"pip install {package.replace('_', '-')}"
            raise PacelineError(f"{recipe} needs {package}", code="package-missing", fix=fix) from None


def exported_by(value: Any) -> Any:
    """A setting that names a model: of the folder of a run, what the run exported.

    Example:
        >>> exported_by("Qwen/Qwen3-0.6B")
        'Qwen/Qwen3-0.6B'
    """
    if isinstance(value, (str, Path)) and Path(value, "exported").is_dir():
        return str(Path(value, "exported"))
    return value


def no_adapter(value: Any, info: ValidationInfo) -> Any:
    """A setting that names a model: refused where it is the folder of an adapter.

    Raises:
        ValueError: which says what takes adapters.
    """
    file = Path(str(value), "adapter_config.json")
    if file.is_file():
        base = json.loads(file.read_text())["base_model_name_or_path"]
        raise ValueError(f"{value} is an adapter; {info.field_name}={base} adapter={value} trains it on")
    return value


def check_vocabulary(tokenizer: Any, model: nn.Module, name: str) -> None:
    """See that each token of a tokenizer has an embedding in its model.

    Args:
        tokenizer: Of transformers.
        model: Likewise, or with adapters of peft.
        name: Where both come from, for the error.

    Raises:
        PacelineError: where there are more tokens, which would be an IndexError in a forward.
    """
    most = max(tokenizer.get_vocab().values())
    count = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if most >= count:
        raise PacelineError(
            "the tokenizer has more tokens than the model",
            code="tokenizer-mismatch",
            got=f"tokens up to {most} in {name}, and {count} embeddings",
            fix="the tokenizer that the model was trained with; or "
            f"model.resize_token_embeddings({most + 1}), model.save_pretrained(FOLDER), and model=FOLDER",
        )


class ExportAtEnd(Callback):
    """Writes what transformers and peft load into ``exported`` of the run's folder.

    Args:
        processor: The tokenizer or image processor, which is written too; None for none.
        merged: Write the model with its adapter merged into it, too, into ``merged``.
    """

    def __init__(self, processor: Any = None, merged: bool = False) -> None:
        self.processor = processor
        self.merged = merged

    def on_fit_end(self, trainer: Any) -> None:
        if trainer.folder is None:
            return
        for name, merged in [("exported", False), *([("merged", True)] if self.merged else [])]:
            folder = trainer.export(trainer.folder / name, "model", merged=merged)
            if trainer.rank == 0 and self.processor is not None:
                self.processor.save_pretrained(folder)
