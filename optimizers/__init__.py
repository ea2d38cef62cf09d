"""Optimizers that save steps or memory: Muon for matrices beside AdamW, and moments kept in 16 bits."""

from ..strategies.machine.devices import has_fused_kernels
from .low_precision_state import LowPrecisionState
from .muon import MuonWithAdamW
from .newton_schulz import orthogonalise
from .routing import muon_matrices

__all__ = [
    "LowPrecisionState",
    "MuonWithAdamW",
    "has_fused_kernels",
    "muon_matrices",
    "orthogonalise",
]
