"""Which weights of a language model are trained: adapters, some layers, or all."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from paceline import PacelineError
from paceline.errors import nearest


def with_adapters(
    model: Any,
    lora: dict[str, Any],
    adapter: str | None,
    rewards: bool = False,
    added: Sequence[int] = (),
) -> Any:
    """The model with adapters of peft, which alone are trained.

    Args:
        model: Of transformers.
        lora: Arguments of peft's ``LoraConfig``.
        adapter: A folder, or a name on the hub, of adapters to train on; None: new ones.
        rewards: Whether it has a head ``score``, which is trained too.
        added: Tokens whose rows of the embeddings and of the head are trained too; no others are.
    """
    from peft import LoraConfig, PeftModel, get_peft_model

    if adapter is not None:
        return PeftModel.from_pretrained(model, adapter, is_trainable=True)
    more = {"task_type": "SEQ_CLS" if rewards else "CAUSAL_LM"}
    saved = [*(lora.get("modules_to_save") or []), *(["score"] if rewards else [])]
    rows = {name: list(added) for name in _embeddings(model, saved)} if added else None
    config = LoraConfig(
        **lora | more | {"modules_to_save": saved or None, "trainable_token_indices": rows or None}
    )
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:  # of targets that no layer has, and of layers that take no adapters
        layers = {
            name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear)
        }
        raise PacelineError(
            f"peft makes no such adapters: {error}",
            code="recipe-settings",
            got=f"lora_targets={lora['target_modules']}",
            allowed=f"all-linear, or of {', '.join(sorted(layers))}",
        ) from None
    if takes_from_base(lora):
        _keep_beginning(adapted, lora | {"trainable_token_indices": rows or None})
    return adapted


def _embeddings(model: Any, saved: Sequence[str]) -> list[str]:
    """Names of the embeddings and of a head that is not tied to them, but of what is trained whole."""
    parts = [part for part in (model.get_output_embeddings(), model.get_input_embeddings()) if part]
    tables = {id(part.weight): part for part in parts}  # of tied ones the embeddings
    names = [name for name, part in model.named_modules() if any(part is one for one in tables.values())]
    return [name for name in names if name.rpartition(".")[2] not in saved]


def takes_from_base(lora: dict[str, Any]) -> bool:
    """Whether adapters begin as a part of the base, which is taken out of it: PiSSA and OLoRA."""
    return str(lora.get("init_lora_weights")).startswith(("pissa", "olora"))


def _keep_beginning(model: Any, lora: dict[str, Any]) -> None:
    """Keep what the adapters are now in others, frozen and out of use: exports refer to the first base."""
    from peft import LoraConfig

    names = ("r", "lora_alpha", "target_modules", "use_rslora", "trainable_token_indices")
    model.add_adapter("initial", LoraConfig(**{n: lora[n] for n in names}, task_type="CAUSAL_LM"))
    weights = dict(model.named_parameters())
    for name, parameter in weights.items():
        parts = name.split(".")
        if "initial" in parts:
            same = ".".join("default" if part == "initial" else part for part in parts)
            parameter.data = weights[same].detach().clone()
            parameter.requires_grad_(False)


def freeze(model: Any, layers: int, patterns: Sequence[str]) -> None:
    """Train some layers, and what else is named; nothing else.

    Args:
        model: Of transformers.
        layers: How many of the last layers; negative: of the first ones; 0: none.
        patterns: Of names of parameters, as in a shell, or of a part of them between dots.

    Raises:
        PacelineError: for a model without so many layers, and a pattern that matches nothing.
    """
    model.requires_grad_(False)
    if layers:
        blocks = layers_of(model)
        if abs(layers) > len(blocks):
            raise PacelineError(
                "train_layers is more than the model has",
                code="recipe-settings",
                got=layers,
                allowed=f"up to {len(blocks)}",
            )
        for block in blocks[-layers:] if layers > 0 else blocks[:-layers]:
            block.requires_grad_()
    names = dict(model.named_parameters())
    for pattern in patterns:
        found = [name for name in names if _matches(name, pattern)]
        if not found:
            raise PacelineError(
                f"train_modules: no parameter of the model matches {pattern!r}",
                code="part-not-found",
                meant=nearest(pattern, names),
            )
        for name in found:
            names[name].requires_grad_()


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model: its longest list of modules of one class.

    Raises:
        PacelineError: where there is none.
    """
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) > 0]
    alike = [part for part in lists if len({type(one) for one in part}) == 1]
    if not alike:
        raise PacelineError(
            f"no list of layers is found in a {type(model).__name__}",
            code="part-not-found",
            fix="train_modules",
        )
    return max((list(part) for part in alike), key=len)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or f".{pattern}." in f".{name}."
