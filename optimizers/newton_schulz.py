"""The nearest orthogonal matrix, nearly: the Newton-Schulz iteration that Muon takes."""

from __future__ import annotations

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315  # the steepest quintic at 0 that stays between 0.7 and 1.2
_EPS = 1e-7


def orthogonalise(matrix: Tensor, dtype: torch.dtype = torch.float32, steps: int = 5) -> Tensor:
    """A matrix with the same singular vectors, and singular values between about 0.7 and 1.2.

    The quintic iteration of Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/). In five
    steps a singular value is multiplied by 480 at most: those that are smaller than 1/500 of the matrix's
    norm stay smaller.

    Args:
        matrix: Of two dimensions.
        dtype: What is computed in; torch.float32 becomes torch.float64 for a matrix of that.
        steps: Iterations.

    Returns:
        A new matrix, in the dtype that was computed in.

    Example:
        >>> torch.linalg.svdvals(orthogonalise(torch.tensor([[3.0, 1.0], [0.0, 0.1]]))).round(decimals=1)
        tensor([1.1000, 0.7000])
    """
    if dtype == torch.float32:
        dtype = torch.promote_types(dtype, matrix.dtype)
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.to(dtype)
    if tall:
        x = x.T
    x = x / x.norm().clamp(min=_EPS)  # no singular value is above 1
    for _ in range(steps):
        gram = x @ x.T
        factor = torch.addmm(gram, gram, gram, beta=_B, alpha=_C)
        x = torch.addmm(x, factor, x, beta=_A)
    return x.T if tall else x
