"""What devices can compute at most, for the share of it that a model uses."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch


class Peak(NamedTuple):
    """Dense matrix products in TFLOP per second, by the precision of their factors; None: not supported."""

    bf16: float | None
    fp16: float
    tf32: float | None
    fp32: float


# NVIDIA's data sheets; where they have a value with sparsity only, half of it. RTX 4090: with float32
# accumulation, "NVIDIA Ada GPU Architecture", appendix A. B200: an eighth of HGX B200.
_PEAKS = {
    r"A100": Peak(312, 312, 156, 19.5),
    r"H100 PCIe": Peak(756, 756, 378, 51),
    r"H100 NVL": Peak(835, 835, 417, 60),
    r"H100(?! (PCIe|NVL))": Peak(989, 989, 494, 67),
    r"H200 NVL": Peak(835, 835, 417, 60),
    r"H200(?! NVL)": Peak(989, 989, 494, 67),
    r"B200": Peak(2250, 2250, 1125, 75),
    r"L4": Peak(121, 121, 60, 30.3),
    r"T4": Peak(None, 65, None, 8.1),
    r"V100-PCIE": Peak(None, 112, None, 14),
    r"V100-SXM\d": Peak(None, 125, None, 15.7),
    r"RTX 4090(?! (D|Laptop))": Peak(165.2, 165.2, 82.6, 82.6),
}


def peak_flops(name: str, dtype: torch.dtype) -> float | None:
    """The FLOP per second that a device does at most in matrix products; None where that is not known.

    Args:
        name: As torch gives it: ``"NVIDIA H100 80GB HBM3"``. A part of a device (MIG) has no known peak.
        dtype: What products are computed in; for float32, with TF32 where torch may use it.
    """
    found = next((p for words, p in _PEAKS.items() if re.search(rf"(?<!\w){words}(?!\w)", name)), None)
    if found is None or "MIG" in name:
        return None
    by_dtype = {torch.bfloat16: found.bf16, torch.float16: found.fp16, torch.float32: found.fp32}
    if dtype is torch.float32 and found.tf32 is not None and _allows_tf32():
        return found.tf32 * 1e12
    tera = by_dtype.get(dtype)
    return None if tera is None else tera * 1e12


def _allows_tf32() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set for each kind of product by itself
        return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"
