"""Sums the gradients of micro-batches in a wider dtype than that of 16-bit parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import PacelineError
from ..torch_internals import has_grad_dtype


class WideAccumulation:
    """Between ``begin`` and ``finish`` the gradients of 16-bit parameters are in a wider dtype.

    In bfloat16 a sum of k micro-batches is rounded k times, each time to 8 bits.

    Args:
        module: Its parameters of a narrower dtype are meant.
        dtype: What gradients are summed in.

    Attributes:
        is_open: Whether gradients are being summed.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._parameters: list[Tensor] = [
            p for p in module.parameters() if torch.promote_types(p.dtype, dtype) != p.dtype
        ]
        self._dtype = dtype
        self.is_open = False

    def begin(self) -> None:
        """Several micro-batches come; no parameter has a gradient yet.

        Raises:
            PacelineError: where torch has no gradients of another dtype than their parameters.
        """
        if self._parameters and not has_grad_dtype():
            narrow = self._parameters[0].dtype
            raise PacelineError(
                f"micro-batches of parameters in {narrow} are summed in {self._dtype} since torch 2.10",
                code="precision-not-supported",
                got=f"torch {torch.__version__}",
                fix='precision="bf16"; or torch 2.10; or paceline.strategies.Full(..., '
                f"accumulate_dtype={narrow}), which rounds in each micro-batch",
            )
        self.is_open = bool(self._parameters)
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad_dtype = self._dtype  # type: ignore[attr-defined]

    def finish(self) -> None:
        """All have gone backward: their sums are rounded to the dtype of the parameters, once."""
        if not self.is_open:
            return
        self.is_open = False
        for parameter in self._parameters:
            total, parameter.grad = parameter.grad, None
            parameter.grad_dtype = parameter.dtype  # type: ignore[attr-defined]
            parameter.grad = None if total is None else total.to(parameter.dtype)
