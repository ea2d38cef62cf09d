"""Causal language models of Hugging Face as they are trained: weights, adapters, and their tokenizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline import PacelineError
from paceline.recipes.data.hugging_face import TINY
from paceline.recipes.data.tiny_models import CHATML, tiny_llama, tiny_tokenizer
from paceline.recipes.language.adapters import freeze, with_adapters
from paceline.recipes.language.quantization import (
    Quantization,
    leave_out_of_checkpoints,
    quantization_config,
)
from paceline.recipes.language.settings import LanguageModelConfig
from paceline.recipes.language.shapes import load

TEMPLATES = {
    "chatml": CHATML,
    "plain": "{% for message in messages %}{{ message['role'].capitalize() }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}",
}
"""Chat templates by name."""


def load_causal_model(
    model: str,
    lora: dict[str, Any] | None = None,
    quantization: Quantization | None = None,
    dtype: str = "float32",
    attn_implementation: str | None = None,
    dropout: float | None = None,
    gradient_checkpointing: bool = False,
    neftune_alpha: float | None = None,
    adapter: str | None = None,
    trained: tuple[int, list[str]] | None = None,
    added_tokens: Sequence[str] = (),
    rewards: bool = False,
) -> Any:
    """A causal language model in training mode, with its weights on the CPU.

    Args:
        model: A name, a folder, or ``tiny``.
        lora: Arguments of peft's ``LoraConfig``; none: all weights are trained.
        quantization: Of the base's linear layers; checkpoints have none of these weights.
        dtype: Of the weights.
        attn_implementation: Of transformers; none: its own choice.
        dropout: The rate of its dropout layers but those of adapters; none: what it has.
        gradient_checkpointing: Whether activations are computed again in the backward pass.
        neftune_alpha: Of the noise on its embeddings in training; none: no noise.
        adapter: A folder of adapters to train on; none: new ones.
        trained: Arguments of ``freeze``; none: all weights are trained.
        added_tokens: Tokens that the model's tokenizer gets; they have embeddings, which are trained.
        rewards: With a new head that gives one number for a row, ``score``, and not its own.
    """
    if model == TINY:
        found = tiny_llama(rewards)
        if attn_implementation is not None:
            found.set_attn_implementation(attn_implementation)
    else:
        found = _from_files(model, quantization, dtype, attn_implementation, rewards)
    if dropout is not None:
        set_dropout(found, dropout)
    if quantization is not None:
        leave_out_of_checkpoints(found)
    added = add_rows(found, model, added_tokens) if added_tokens else []
    if gradient_checkpointing:
        found.gradient_checkpointing_enable({"use_reentrant": False})
    if neftune_alpha is not None:
        add_noise(found.get_input_embeddings(), neftune_alpha)
    if trained is not None:
        freeze(found, *trained)
        if added and not found.get_input_embeddings().weight.requires_grad:
            raise PacelineError(
                "the embeddings of added_tokens would not be trained",
                code="recipe-settings",
                fix="train_modules=[embed_tokens,lm_head]",
            )
    return found if lora is None else with_adapters(found, lora, adapter, rewards, added)


def _from_files(
    model: str,
    quantization: Quantization | None,
    dtype: str,
    attn_implementation: str | None,
    rewards: bool,
) -> Any:
    import transformers

    more: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if attn_implementation is not None:
        more["attn_implementation"] = attn_implementation
    if quantization is not None:
        more["quantization_config"] = quantization_config(quantization)
    if rewards:
        more["num_labels"] = 1
    kind = transformers.AutoModelForSequenceClassification if rewards else transformers.AutoModelForCausalLM
    return loaded(kind, model, **more).train()


def loaded(kind: Any, name: str, **more: Any) -> Any:
    """What a class of transformers loads by a name or from a folder.

    Raises:
        PacelineError: where it cannot be loaded.
    """
    try:
        return load(kind, name, **more)
    except (OSError, ValueError) as error:
        raise PacelineError(
            f"{name} cannot be loaded by {kind.__name__}",
            code="model-not-loadable",
            got=str(error).strip().partition("\n")[0],
            allowed="a name on the Hugging Face hub, or a folder with config.json, weights, tokenizer.json",
        ) from None


def add_rows(model: Any, name: str, tokens: Sequence[str]) -> list[int]:
    """Give tokens rows of the embeddings and of the head: the mean of those that exist.

    A row that the model has, as it has more of them than its tokenizer has tokens, stays as it is.

    Args:
        model: Of transformers.
        name: Whose tokenizer it is.
        tokens: Which are added to it.

    Returns:
        The numbers of the tokens.
    """
    numbers: list[int] = tokenizer_of(name, tokens).convert_tokens_to_ids(list(tokens))
    if max(numbers) >= model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(max(numbers) + 1, mean_resizing=True)
    return numbers


def set_dropout(model: nn.Module, rate: float) -> None:
    """Let each layer that drops something in training drop this part of it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, rate)


def add_noise(embeddings: nn.Module, alpha: float) -> None:
    """Add uniform noise to what embeddings give in training: NEFTune.

    With rows of n tokens and d numbers it reaches from -alpha / sqrt(n d) to alpha / sqrt(n d) (Jain et al.
    2023, https://arxiv.org/abs/2310.05914, algorithm 1). It is drawn from torch's generator.
    """

    def noisy(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        if not module.training:
            return output
        most = alpha / math.sqrt(output.shape[1] * output.shape[2])
        return output + torch.zeros_like(output).uniform_(-most, most)

    embeddings.register_forward_hook(noisy)


def load_tokenizer(config: LanguageModelConfig) -> Any:
    """The model's tokenizer, with the chat template and the added tokens that are to be used."""
    tokenizer = tokenizer_of(config.model, config.added_tokens)
    if config.chat_template is not None:
        tokenizer.chat_template = _template(config.chat_template)
    return tokenizer


def tokenizer_of(model: str, added: Sequence[str] = ()) -> Any:
    """The tokenizer of a model.

    Args:
        model: A name, a folder, or ``tiny``.
        added: Tokens to add, which are found in texts as they are.
    """
    from transformers import AddedToken, AutoTokenizer

    own = copy.deepcopy(tiny_tokenizer()) if model == TINY else loaded(AutoTokenizer, model)
    own.add_tokens([AddedToken(token, normalized=False) for token in added])
    return own


def _template(file: Path) -> str:
    if str(file) in TEMPLATES:
        return TEMPLATES[str(file)]
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise PacelineError(
            f"chat_template: {file} cannot be read: {error.strerror}",
            code="file-unreadable",
            allowed=f"a file of Jinja, {', '.join(TEMPLATES)}",
        ) from None
