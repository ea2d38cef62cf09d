"""Frozen bases of language models in 4 or 8 bits, on which adapters are trained."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

Quantization = Literal["bitsandbytes-4", "bitsandbytes-8", "torchao-8"]
"""Which package keeps the weights of linear layers, and in how many bits."""


def quantization_config(kind: Quantization) -> Any:
    """What ``from_pretrained`` of transformers takes as ``quantization_config``."""
    import transformers

    if kind == "torchao-8":
        from torchao.quantization import Int8WeightOnlyConfig

        return transformers.TorchAoConfig(Int8WeightOnlyConfig())
    if kind == "bitsandbytes-8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )


def leave_out_of_checkpoints(model: nn.Module) -> None:
    """Keep quantized weights out of the state dict: they are frozen, and quantized again of their files."""

    def drop(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        parts = ("weight", "SCB")  # what bitsandbytes keeps beside a weight begins with these words
        for name in [name for name in state if name.removeprefix(prefix).startswith(parts)]:
            if name.startswith(prefix):
                del state[name]

    def keep(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = module.weight

    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module.weight) is not nn.Parameter:
            # Else an evaluation on a CPU with AVX512-BF16 rounds the weights, and a checkpoint then leaves
            # their scales in another order (bitsandbytes 0.50).
            vars(module)["support_avx512bf16_for_cpu"] = False
            module.register_state_dict_post_hook(drop)
            module.register_load_state_dict_pre_hook(keep)
