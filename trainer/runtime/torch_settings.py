"""Settings of torch that a run has for its own time, and that are restored after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from .determinism import deterministic


class TorchSettings(Protocol):
    """The Trainer's arguments, as far as they are torch's."""

    @property
    def deterministic(self) -> bool:
        """Deterministic algorithms."""

    @property
    def fp32_precision(self) -> str | None:
        """How products of float32 are computed inside; None leaves it."""


@contextmanager
def torch_settings(arguments: TorchSettings) -> Iterator[None]:
    """Inside, torch is set as the arguments say."""
    with deterministic(arguments.deterministic), _fp32_precision(arguments.fp32_precision):
        yield


@contextmanager
def _fp32_precision(precision: str | None) -> Iterator[None]:
    if precision is None:
        yield
        return
    # The first sets all others where they are not set by themselves.
    backends: Any = torch.backends
    places = [backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    places += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    before = [place.fp32_precision for place in places]
    for place in places:
        try:
            place.fp32_precision = precision
        except RuntimeError:  # cuDNN has no bf16, oneDNN as it is built here may have no tf32
            continue
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value
