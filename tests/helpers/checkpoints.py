"""What is in a checkpoint, read without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paceline.strategies import Weights
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.files.integrity import verify
from paceline.trainer.checkpoint.files.reading import read_manifest, read_state
from paceline.trainer.checkpoint.weights import stored_shapes


def stored_tensors(checkpoint: Path | None) -> dict[str, torch.Tensor]:
    """All tensors, whole, by name; every file is verified."""
    assert checkpoint is not None
    manifest = verify(checkpoint)
    stored = files.tensor_files(checkpoint, manifest)
    return Weights().load_tensors(stored, stored_shapes(checkpoint, manifest))


def stored_state(checkpoint: Path) -> Any:
    """What state.json holds."""
    return read_state(checkpoint, read_manifest(checkpoint))


def assert_same_tensors(
    expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], tolerance: float
) -> None:
    """The same names, dtypes and values, to an absolute tolerance; optimizer state is among them."""
    assert found.keys() == expected.keys()
    assert any(name.startswith("optim.") for name in found)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
