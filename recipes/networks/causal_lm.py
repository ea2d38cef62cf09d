"""What recipes ask of causal language models of Hugging Face: hidden states, and documents kept apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline import PacelineError
from paceline.recipes.networks.document_attention import (
    Documents,
    attend,
    documents_in,
    dtype_of_products,
    fastest,
    fits_packed,
    starts_of,
)

ATTENTION = "paceline_documents"
"""The name of ``attend`` among the attention functions of transformers."""
_IGNORED = ("position_ids", "cache_position", "output_router_logits")


class Abilities(NamedTuple):
    """What can be asked of a model; each recipe works without.

    Attributes:
        split: Its logits are what its head makes of its hidden states: some models scale them, or cap them.
        documents: The longest rows in which its attention takes ``documents``, and sees all tokens before.
    """

    split: bool = False
    documents: float = 0


def abilities_of(model: Any) -> Abilities:
    """Try what a model can do, on a few tokens; its attention takes documents from then on, if it can.

    Args:
        model: Of transformers, or with adapters of peft; with weights that its device can compute with. On
            the meta device nothing can be tried: it is taken for one that can do all.
    """
    if next(model.parameters()).is_meta:
        return _taken_for_able(model)
    tokens = torch.arange(1, 13, device=next(model.parameters()).device)[None]
    places = torch.arange(6, device=tokens.device).repeat(2)[None]
    training = model.training
    model.eval()
    with torch.no_grad(), _silent():
        expected, split = _logits(model, tokens, places)
        documents = _takes_documents(model, tokens, places, expected)
        if not documents:
            _take_the_usual_attention(model)
    model.train(training)
    return Abilities(split, _shortest_window(model) if documents else 0)


def hidden_and_head(
    model: Any, able: Abilities, input_ids: Tensor, position_ids: Tensor, starts: Tensor | None = None
) -> tuple[Tensor, nn.Module]:
    """What a model's head takes, and the head, for ``mean_loss``; or logits, and what leaves them so.

    Args:
        model: Of transformers, or with adapters of peft.
        able: Of ``abilities_of``.
        input_ids: (rows, length).
        position_ids: Likewise; they restart at 0 in each document.
        starts: Where documents begin in each row, as ``starts_of`` gives them; none: the positions say it.
    """
    inputs: dict[str, Any] = {"input_ids": input_ids, "position_ids": position_ids, "use_cache": False}
    length, device = input_ids.shape[1], input_ids.device
    if starts is not None and length <= able.documents:
        kind = fastest(device, dtype_of_products(device, model.dtype), 64)  # the trial has seen the width
        inputs["documents"] = documents_in(starts, length, kind)
        # A mask of four dimensions is handed on as it is; else transformers makes one of the positions.
        inputs["attention_mask"] = torch.zeros(1, 1, 1, 1, device=device)
    if not able.split:
        return model(**inputs).logits, nn.Identity()
    causal = _without_peft(model)
    return causal.base_model(**inputs).last_hidden_state, causal.get_output_embeddings()


def refuse_packing_where_rows_mix(model: nn.Module) -> None:
    """Compare two short texts in one row with the same alone.

    Raises:
        PacelineError: for a model that does not keep them apart by their positions.
    """
    model.eval()
    device = next(model.parameters()).device
    first, second = torch.arange(1, 13, device=device).view(2, 1, 6)
    places = torch.arange(6, device=device)[None]
    with torch.no_grad():
        row = {"input_ids": torch.cat([first, second], 1), "position_ids": torch.cat([places, places], 1)}
        packed = model(**row, use_cache=False).logits[:, 6:]
        alone = model(input_ids=second, position_ids=places, use_cache=False).logits
    model.train()
    if not _same(packed, alone):
        raise PacelineError(
            f"conversations in one row would see each other in a {type(model).__name__}",
            code="recipe-settings",
            fix="packing=false",
        )


def _logits(model: Any, tokens: Tensor, places: Tensor) -> tuple[Tensor, bool]:
    """The logits, and whether the head gives just these of the base model's hidden states."""
    causal, seen = _without_peft(model), []
    inputs = {"input_ids": tokens, "position_ids": places, "use_cache": False}
    head = causal.get_output_embeddings()
    if head is None:
        return model(**inputs).logits, False
    hook = head.register_forward_hook(lambda _, given, found: seen.append((given[0], found.clone())))
    try:
        logits: Tensor = model(**inputs).logits
    finally:
        hook.remove()
    try:
        hidden = causal.base_model(**inputs).last_hidden_state
        ((given, found),) = seen
        return logits, torch.equal(given, hidden) and torch.equal(found, logits)
    except Exception:  # a base model may be the whole one, or the head another's
        return logits, False


def _shortest_window(model: Any) -> float:
    """How many tokens each layer sees at least; some models say it in their mask alone."""
    config = _without_peft(model).config.get_text_config()
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min((window for window in windows if isinstance(window, int)), default=math.inf)


def _takes_documents(model: Any, tokens: Tensor, places: Tensor, expected: Tensor) -> bool:
    """Whether two documents in a row have the same logits by ``attend``, which the model is given."""
    _register_attention()
    able, starts = Abilities(documents=math.inf), starts_of(torch.tensor([[0] * 6 + [1] * 6]))
    device = tokens.device
    try:
        _without_peft(model).set_attn_implementation(ATTENTION)
        for training in (True, False):  # dropout of attention is refused, which acts in training only
            model.train(training)
            with torch.random.fork_rng([] if device.type == "cpu" else [device]):
                found, _ = hidden_and_head(model, able, tokens, places, starts.to(device))
    except Exception:  # a model may refuse in any way what it does not know
        return False
    return _same(found, expected)


def _taken_for_able(model: Any) -> Abilities:
    _register_attention()
    _without_peft(model).set_attn_implementation(ATTENTION)
    has_head = isinstance(_without_peft(model).get_output_embeddings(), nn.Module)
    return Abilities(has_head, _shortest_window(model))


def _register_attention() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, AttentionMaskInterface()["sdpa"])


def _take_the_usual_attention(model: Any) -> None:
    """What transformers takes where nothing is asked for: sdpa, or eager where a model has no other."""
    try:
        _without_peft(model).set_attn_implementation("sdpa")
    except ValueError:
        _without_peft(model).set_attn_implementation("eager")


@contextmanager
def _silent() -> Iterator[None]:
    """Without the warnings of models that have only one attention."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    documents: Documents | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """``attend`` as transformers calls it; without documents what it does by itself.

    Args:
        module: The attention layer.
        query: (rows, heads, length, numbers).
        key: Likewise, or with fewer heads.
        value: As ``key``.
        attention_mask: Not looked at where there are documents.
        documents: Of ``documents_in``.
        options: ``scaling``, and what the model has of dropout, windows and the like.

    Raises:
        TypeError: for documents with what ``attend`` has not: dropout, a window shorter than the rows, or
            heads that FlashAttention does not take.
    """
    if documents is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return found
    scale = options.pop("scaling", None)
    given = {name: option for name, option in options.items() if name not in _IGNORED and option}
    if given.get("sliding_window", 0) >= query.shape[2]:
        del given["sliding_window"]
    if given:
        raise TypeError(f"attention within documents has no {', '.join(given)}")
    if not fits_packed(query.shape[3]) or value.shape[3] != query.shape[3]:
        raise TypeError(f"attention within documents has no heads of {query.shape[3]} and {value.shape[3]}")
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return attend(query, key, value, documents, scale), None


def _same(found: Tensor, expected: Tensor) -> bool:
    rounding = 1e-3 if expected.dtype == torch.float32 else 0.05
    return found.shape == expected.shape and bool(
        (found - expected).abs().max() <= rounding * expected.abs().max()
    )


def _without_peft(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
