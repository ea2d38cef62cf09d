"""Whether one set of rows tells anything of another: a test by permutations, without the user's model."""

from __future__ import annotations

from statistics import fmean, pstdev

import torch
from torch import Tensor

_FEATURES = 200
_MOST_ROWS = 1000
_PERMUTATIONS = 40
_DEVIATIONS = 3.5


def rows_of(tensors: list[Tensor]) -> Tensor | None:
    """Inputs as rows of numbers: floats as they are, whole numbers as counts of each."""
    parts = []
    for one in tensors:
        if not len(one) or one.is_complex():
            continue
        flat = one[:_MOST_ROWS].reshape(min(len(one), _MOST_ROWS), -1)
        if one.dtype.is_floating_point or one.dtype in (torch.uint8, torch.bool):
            flat = flat.double()
            flat = (flat - flat.mean(0)) / (flat.std(0) + 1e-9)
            parts.append(torch.nan_to_num(flat))
        elif int(flat.min()) >= 0 and int(flat.max()) < 5000:
            counts = torch.zeros(len(flat), int(flat.max()) + 1, dtype=torch.float64)
            counts.scatter_add_(1, flat.long(), torch.ones_like(flat, dtype=torch.float64))
            parts.append(counts)
            if flat.shape[1] <= 64:
                parts.append(_standard(flat.double()))
    same = [one for one in parts if len(one) == len(parts[0])]
    return torch.cat(same, 1) if same else None


def _standard(flat: Tensor) -> Tensor:
    return torch.nan_to_num((flat - flat.mean(0)) / (flat.std(0) + 1e-9))


def targets_of(target: Tensor) -> Tensor:
    """Targets as rows of numbers: classes as indicators."""
    target = target[:_MOST_ROWS]
    flat = target.reshape(len(target), -1)
    if flat.shape[1] == 1 and not target.dtype.is_floating_point:
        kinds, index = flat[:, 0].unique(return_inverse=True)
        if len(kinds) <= 100:
            return torch.eye(len(kinds), dtype=torch.float64)[index]
    return _standard(flat[:, :256].double())


def relates(inputs: Tensor, targets: Tensor) -> bool:
    """Whether half of the rows predict the others better than they do in all of some permutations."""
    draws = torch.Generator().manual_seed(3)
    features = [torch.ones(len(inputs), 1, dtype=torch.float64), _reduced(inputs, draws)]
    for power in (1.0, 3.0):
        weights = torch.randn(features[1].shape[1], _FEATURES, generator=draws, dtype=torch.float64)
        hidden = features[1] @ (weights * power / features[1].shape[1] ** 0.5)
        features.append(torch.relu(hidden + torch.randn(_FEATURES, generator=draws, dtype=torch.float64)))
    for some in (features[:2], features[:1] + features[2:3], features[:1] + features[3:]):
        matrix = torch.cat(some, 1)
        orders = [torch.randperm(len(targets), generator=draws) for _ in range(_PERMUTATIONS)]
        true, *others = _errors(matrix, [targets, *(targets[order] for order in orders)])
        if stands_out(true, others):
            return True
    return _near_rows_are_alike(features[1], targets, draws)


def _reduced(inputs: Tensor, draws: torch.Generator) -> Tensor:
    if inputs.shape[1] <= 512:
        return inputs
    mix = torch.randn(inputs.shape[1], 512, generator=draws, dtype=torch.float64)
    reduced: Tensor = inputs @ mix / inputs.shape[1] ** 0.5
    return reduced


def _errors(matrix: Tensor, several: list[Tensor]) -> list[float]:
    """Squared errors of ridge regressions on the other half of the rows, both ways."""
    half = len(matrix) // 2
    found = [0.0] * len(several)
    for one, other in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
        known = matrix[one]
        size = float((known * known).mean()) * len(known)
        gram = known.T @ known + 0.1 * size * torch.eye(matrix.shape[1], dtype=torch.float64)
        solve = torch.linalg.solve(gram, known.T)
        for number, targets in enumerate(several):
            guess = matrix[other] @ (solve @ targets[one])
            found[number] += float((guess - targets[other]).square().sum())
    return found


def _near_rows_are_alike(rows: Tensor, targets: Tensor, draws: torch.Generator) -> bool:
    distances = torch.cdist(rows, rows)
    distances.fill_diagonal_(float("inf"))
    nearest = distances.topk(min(5, len(rows) - 1), largest=False).indices

    def error(one: Tensor) -> float:
        return float((one[nearest].mean(1) - one).square().sum())

    orders = [torch.randperm(len(targets), generator=draws) for _ in range(_PERMUTATIONS)]
    return stands_out(error(targets), [error(targets[order]) for order in orders])


def stands_out(true: float, others: list[float]) -> bool:
    """Whether an error is lower than those of permutations by more than chance makes one of a thousand."""
    return fmean(others) - true > _DEVIATIONS * pstdev(others)
