"""Language models without weights, and rows of any tokens: what ``paceline estimate`` needs."""

from __future__ import annotations

from array import array
from typing import Any

import torch

from paceline import PacelineError
from paceline.config import shapes_alone
from paceline.recipes.language.data.templates import Encoded


def load(kind: Any, model: str, **arguments: Any) -> Any:
    """``kind.from_pretrained``; where shapes alone are asked for, on the meta device, of its config alone.

    Args:
        kind: A class of transformers, as ``AutoModelForCausalLM``.
        model: A name, or a folder; ``config.json`` suffices for its shapes.
        **arguments: Of ``from_pretrained``.

    Raises:
        PacelineError: for the shapes of a quantized model.
    """
    if not shapes_alone():
        return kind.from_pretrained(model, **arguments)
    from transformers import AutoConfig

    if "quantization_config" in arguments:
        raise PacelineError(
            "an estimate does not know the kernels of quantized layers",
            code="estimate-not-possible",
            fix="estimate without quantization: a frozen base in 4 bits needs about a quarter of its "
            "parameters in bfloat16, and as many activations",
        )
    of_config = {name: arguments.pop(name) for name in ("num_labels",) if name in arguments}
    with torch.device("meta"):
        return kind.from_config(AutoConfig.from_pretrained(model, **of_config), **arguments)


def any_row(length: int) -> Encoded:
    """A sample of so many tokens, all but the first of which are learned."""
    return Encoded(array("i", [1] * length), array("i", [1] * (length - 1) + [-100]))
