"""The nearest orthogonal matrix, nearly: the Newton-Schulz iteration that Muon takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315  # the steepest quintic at 0 that stays between 0.7 and 1.2
_EPS = 1e-7


def orthogonalise(matrix: Tensor, dtype: torch.dtype = torch.float32, steps: int = 5) -> Tensor:
    """Matrices with the same singular vectors, and singular values between about 0.7 and 1.2.

    The quintic iteration of Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/). In five
    steps a singular value is multiplied by 480 at most: those that are smaller than 1/500 of the matrix's
    norm stay smaller.

    Args:
        matrix: (rows, columns), or several of one shape: (matrices, rows, columns).
        dtype: What is computed in; torch.float32 becomes torch.float64 for a matrix of that.
        steps: Iterations.

    Returns:
        As many new ones, in the dtype that was computed in.

    Example:
        >>> torch.linalg.svdvals(orthogonalise(torch.tensor([[3.0, 1.0], [0.0, 0.1]]))).round(decimals=1)
        tensor([1.1000, 0.7000])
    """
    if dtype == torch.float32:
        dtype = torch.promote_types(dtype, matrix.dtype)
    tall = matrix.size(-2) > matrix.size(-1)
    x = matrix.to(dtype)
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=_EPS)  # no singular value is above 1
    multiply_and_add = torch.addmm if x.ndim == 2 else torch.baddbmm
    for _ in range(steps):
        gram = x @ x.mT
        factor = multiply_and_add(gram, gram, gram, beta=_B, alpha=_C)
        x = multiply_and_add(x, factor, x, beta=_A)
    return x.mT if tall else x


def orthogonalise_all(
    matrices: Sequence[Tensor], dtype: torch.dtype = torch.float32, steps: int = 5
) -> list[Tensor]:
    """``orthogonalise`` for matrices of any shapes: those of one shape, or of its transpose, at once.

    Args:
        matrices: (rows, columns) each.
        dtype: As for ``orthogonalise``.
        steps: Likewise.

    Returns:
        As many new ones in the same order, in the dtype that was computed in.

    Example:
        >>> [tuple(m.shape) for m in orthogonalise_all([torch.ones(2, 3), torch.ones(3, 2), torch.eye(4)])]
        [(2, 3), (3, 2), (4, 4)]
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, matrix in enumerate(matrices):
        alike.setdefault((*sorted(matrix.shape), matrix.dtype, matrix.device), []).append(index)
    found = list(matrices)
    for indices in alike.values():
        wide = [matrices[i] if _is_wide(matrices[i]) else matrices[i].mT for i in indices]
        one = len(wide) == 1
        results = orthogonalise(wide[0] if one else torch.stack(wide), dtype, steps)
        for index, result in zip(indices, [results] if one else results, strict=True):
            found[index] = result if _is_wide(matrices[index]) else result.mT
    return found


def _is_wide(matrix: Tensor) -> bool:
    return matrix.size(0) <= matrix.size(1)
