"""The optimizer and the schedule of a language model: groups of parameters with rates of their own."""

from __future__ import annotations

from typing import Any

from torch import nn

from paceline import PacelineError, TrainModule
from paceline.config import make_optimizer, make_scheduler, shapes_alone
from paceline.optimizers import has_fused_kernels


def configured(
    module: TrainModule,
    model: Any,
    *,
    learning_rate: float,
    embedding_learning_rate: float | None = None,
    head_learning_rate: float | None = None,
    lora_plus_ratio: float | None = None,
    optimizer: str | dict[str, Any] = "AdamW",
    weight_decay: float = 0.0,
    scheduler: str | dict[str, Any] = "cosine",
    warmup: str | int = 0,
) -> dict[str, Any]:
    """What ``configure_optimizers`` returns.

    Args:
        module: The module that is trained.
        model: Its language model, of transformers or with adapters of peft.
        learning_rate: Of all parameters that have no other.
        embedding_learning_rate: Of the embeddings; None: ``learning_rate``.
        head_learning_rate: Of the head, where it is not the embeddings again; None: ``learning_rate``.
        lora_plus_ratio: Of the adapters' second matrices, times ``learning_rate``; None: 1.
        optimizer: A name, or a class with its arguments.
        weight_decay: Of parameters of two dimensions or more.
        scheduler: A name, or a class with its arguments.
        warmup: A duration or a part of the run.

    Raises:
        PacelineError: for rates of parameters that are not trained.
    """
    rates = {
        "embeddings": embedding_learning_rate,
        "head": head_learning_rate,
        "lora_B": None if lora_plus_ratio is None else learning_rate * lora_plus_ratio,
    }
    groups = parameter_groups(module, model, learning_rate, rates, weight_decay)
    fused = shapes_alone() or has_fused_kernels(module.device) or None  # an estimate is of other devices
    made = make_optimizer(
        optimizer, groups, module=model, lr=learning_rate, weight_decay=weight_decay, fused=fused
    )
    return {"optimizer": made, "lr_scheduler": make_scheduler(scheduler, made, warmup=warmup)}


def parameter_groups(
    module: nn.Module, model: Any, rate: float, rates: dict[str, float | None], weight_decay: float
) -> list[dict[str, Any]]:
    """The trained parameters by rate and weight decay, in the order in which they are registered.

    Args:
        module: Its parameters are grouped.
        model: Says which of them are embeddings and head.
        rate: Of the others.
        rates: Of ``embeddings``, ``head`` and ``lora_B``; None: ``rate``.
        weight_decay: Of parameters of two dimensions or more.

    Raises:
        PacelineError: for a rate of parameters that are not trained.
    """
    kinds = _kinds(model)
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        kind = kinds.get(parameter, "lora_B" if ".lora_B." in name or ".lora_embedding_B." in name else "")
        kind = kind if rates.get(kind) is not None else ""
        decays = len(getattr(parameter, "ds_shape", parameter.shape)) >= 2
        its = {"lr": rates[kind] if kind else rate, "weight_decay": weight_decay if decays else 0.0}
        groups.setdefault((kind, decays or not weight_decay), {"params": [], **its})["params"].append(
            parameter
        )
    for kind, given in rates.items():
        if given is not None and not any(found == kind for found, _ in groups):
            raise PacelineError(
                f"a learning rate is given for {kind}, which is not trained", code="recipe-settings"
            )
    return list(groups.values())


def _kinds(model: Any) -> dict[nn.Parameter, str]:
    """Which parameters are embeddings, and which the head; tied ones are embeddings."""
    found: dict[nn.Parameter, str] = {}
    head = model.get_output_embeddings() or getattr(model, "score", None)
    for kind, part in (("head", head), ("embeddings", model.get_input_embeddings())):
        found |= dict.fromkeys([] if part is None else part.parameters(), kind)
    return found
