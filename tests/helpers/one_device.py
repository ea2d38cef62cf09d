"""What ranks are compared with: the same cases under Single, in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch

from paceline.strategies import Single


def observed(
    job: Any, folder: Path, trained_alike: Callable[[str], Hashable] = str
) -> Callable[[str], dict[str, Any]]:
    """Gives what ``job.observe`` saw of a case on one device; each case is trained once.

    Args:
        trained_alike: The same for cases that are the same on one device, of which one is trained.
    """
    found: dict[Hashable, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        case = trained_alike(name)
        if case not in found:
            found[case] = job.observe(name, 1, folder, Single())
        return found[case]

    return of


def assert_close(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float
) -> None:
    """The same names and dtypes, and numbers that differ by at most ``tolerance``."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
