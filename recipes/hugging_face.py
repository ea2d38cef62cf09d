"""Language models of Hugging Face for recipes: settings, loading, adapters, and export."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt

from paceline import PacelineError
from paceline.callbacks import Callback
from paceline.config import RunConfig
from paceline.recipes.tiny_llama import tiny_model, tiny_tokenizer

TINY = "tiny"


class LanguageModelConfig(RunConfig):
    """Which model is trained, and which of its weights."""

    model: str = TINY
    """A name on the Hugging Face hub, a folder, or ``tiny``: a small random Llama."""
    chat_template: Path | None = None
    """A file of Jinja; none: the tokenizer's own."""
    method: Literal["full", "lora"] = "full"
    """Train all weights, or adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""
    lora_rank: PositiveInt = 16
    """Of the adapters' matrices."""
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 32.0
    """An adapter's output is multiplied by it, over ``lora_rank``."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Rate of dropout before adapters."""
    lora_targets: list[str] | Literal["all-linear"] = "all-linear"
    """Names of layers that get adapters."""
    load_in_4bit: bool = False
    """QLoRA: keep the base in 4 bits (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights as they are loaded."""
    export: bool = True
    """At the end, write the model or the adapter, and the tokenizer, into the run's ``exported``."""

    def model_arguments(self) -> dict[str, Any]:
        """Arguments of ``load_causal_model``, kept with the run."""
        lora = {
            "r": self.lora_rank,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "target_modules": self.lora_targets,
        }
        return {
            "model": self.model,
            "lora": lora if self.method == "lora" else None,
            "load_in_4bit": self.load_in_4bit,
            "dtype": self.dtype,
        }


def require_packages(recipe: str, *packages: str) -> None:
    """Raise for a package that cannot be imported.

    Raises:
        PacelineError: which says how to install it.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            raise PacelineError(f"{recipe} needs {package}", fix="pip install 'paceline[hf]'") from None


def load_causal_model(
    model: str, lora: dict[str, Any] | None = None, load_in_4bit: bool = False, dtype: str = "float32"
) -> Any:
    """A causal language model in training mode, with its weights on the CPU.

    Args:
        model: A name, a folder, or ``tiny``.
        lora: Arguments of peft's ``LoraConfig``; none: all weights are trained.
        load_in_4bit: By bitsandbytes.
        dtype: Of the weights.
    """
    if model == TINY:
        found = tiny_model()
    else:
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig

        more: dict[str, Any] = {"dtype": getattr(torch, dtype)}
        if load_in_4bit:
            more["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
            )
        found = AutoModelForCausalLM.from_pretrained(model, **more).train()
    if lora is None:
        return found
    from peft import LoraConfig, get_peft_model

    return get_peft_model(found, LoraConfig(task_type="CAUSAL_LM", **lora))


def load_tokenizer(config: LanguageModelConfig) -> Any:
    """The model's tokenizer, with the chat template that is to be used."""
    if config.model == TINY:
        return tiny_tokenizer()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.model)
    if config.chat_template is not None:
        tokenizer.chat_template = config.chat_template.expanduser().read_text()
    return tokenizer


class ExportAtEnd(Callback):
    """Writes what transformers and peft load into ``exported`` of the run's folder, with the tokenizer.

    Args:
        tokenizer: Of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def on_fit_end(self, trainer: Any) -> None:
        if trainer.folder is not None:
            folder = trainer.export(trainer.folder / "exported", "model")
            if trainer.rank == 0:
                self.tokenizer.save_pretrained(folder)
