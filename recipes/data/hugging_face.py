"""Language models of Hugging Face for recipes: settings, loading, adapters, and export."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, PositiveInt
from torch import nn

from paceline import PacelineError
from paceline.callbacks import Callback
from paceline.config import RunConfig
from paceline.recipes.data.tiny_models import no_folder_too, tiny_llama, tiny_tokenizer

TINY = "tiny"


class LanguageModelConfig(RunConfig):
    """Which model is trained, and which of its weights."""

    model: Annotated[str, BeforeValidator(no_folder_too)] = TINY
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

    def check(self, recipe: str) -> None:
        """Refuse settings that do not go together, and packages that are missing.

        Raises:
            PacelineError: which says what to change.
        """
        require_packages(recipe, "transformers", "peft", *["bitsandbytes"] * self.load_in_4bit)
        if self.load_in_4bit and (self.method != "lora" or self.model == TINY):
            raise PacelineError("load_in_4bit is for method=lora, of a model that is loaded from files")
        if self.model != TINY and "learning_rate" not in self.model_fields_set:
            raise PacelineError(
                f"{recipe}: the default learning rate is for the tiny model alone",
                fix="preset=lora or preset=full, or learning_rate=...",
            )

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
            known = package in ("transformers", "peft")
            fix = "pip install 'paceline[hf]'" if known else f"pip install {package.replace('_', '-')}"
            raise PacelineError(f"{recipe} needs {package}", fix=fix) from None


def load_causal_model(
    model: str,
    lora: dict[str, Any] | None = None,
    load_in_4bit: bool = False,
    dtype: str = "float32",
    dropout: bool = True,
) -> Any:
    """A causal language model in training mode, with its weights on the CPU.

    Args:
        model: A name, a folder, or ``tiny``.
        lora: Arguments of peft's ``LoraConfig``; none: all weights are trained.
        load_in_4bit: By bitsandbytes; checkpoints have none of these weights.
        dtype: Of the weights.
        dropout: False: none but that of adapters.
    """
    if model == TINY:
        found = tiny_llama()
    else:
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig

        more: dict[str, Any] = {"dtype": getattr(torch, dtype)}
        if load_in_4bit:
            more["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
            )
        found = AutoModelForCausalLM.from_pretrained(model, **more).train()
    if not dropout:
        switch_dropout_off(found)
    if load_in_4bit:
        leave_out_of_checkpoints(found)
    if lora is None:
        return found
    from peft import LoraConfig, get_peft_model

    return get_peft_model(found, LoraConfig(task_type="CAUSAL_LM", **lora))


def switch_dropout_off(model: nn.Module) -> None:
    """Let no layer drop anything in training either."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def leave_out_of_checkpoints(model: nn.Module) -> None:
    """Keep weights in 4 bits out of the state dict: they are frozen, and read from their files again."""

    def drop(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in [name for name in state if name.startswith(f"{prefix}weight")]:
            del state[name]

    def keep(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = module.weight

    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.register_state_dict_post_hook(drop)
            module.register_load_state_dict_pre_hook(keep)


def load_tokenizer(config: LanguageModelConfig) -> Any:
    """The model's tokenizer, with the chat template that is to be used."""
    if config.model == TINY:
        tokenizer = copy.deepcopy(tiny_tokenizer())
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(config.model)
    if config.chat_template is not None:
        tokenizer.chat_template = config.chat_template.expanduser().read_text()
    return tokenizer


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
            got=f"tokens up to {most} in {name}, and {count} embeddings",
            fix="the tokenizer that the model was trained with; or "
            f"model.resize_token_embeddings({most + 1}), model.save_pretrained(FOLDER), and model=FOLDER",
        )


class ExportAtEnd(Callback):
    """Writes what transformers and peft load into ``exported`` of the run's folder.

    Args:
        processor: The tokenizer or image processor, which is written too; None for none.
    """

    def __init__(self, processor: Any = None) -> None:
        self.processor = processor

    def on_fit_end(self, trainer: Any) -> None:
        if trainer.folder is not None:
            folder = trainer.export(trainer.folder / "exported", "model")
            if trainer.rank == 0 and self.processor is not None:
                self.processor.save_pretrained(folder)
