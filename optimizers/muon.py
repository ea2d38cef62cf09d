"""MuonWithAdamW: Muon for the hidden matrices of a module and AdamW for the rest, as one optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ..common.argument_checks import AMOUNT, COUNT, PART, SWITCH, check_arguments, one_of
from ..common.chunks import in_chunks
from ..errors import PacelineError
from ..parameter_groups import decay_groups
from .newton_schulz import orthogonalise_all
from .routing import muon_matrices
from .whole_matrices import WholeMatrices, in_place

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
_ADJUSTMENTS: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}
_MUON, _ADAMW = "muon", "adamw"
_NUMBERS_AT_ONCE = 2**25
"""In matrices that are orthogonalised together: some 0.5 GB in float32 with what the iteration needs."""
_NUMBERS_AT_ONCE_ON_CPU = 2**17
"""More would be slower than one matrix after another, as they leave its caches."""


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024) for hidden matrices, torch's AdamW for all other parameters.

    Muon makes each momentum nearly orthogonal before it subtracts it; that is for matrices between hidden
    layers only. ``muon_matrices`` says which these are by default, and ``split()`` shows them.

    Matrices of one shape are orthogonalised together. Where each rank has a part of a matrix, the whole of
    it is gathered, and every rank orthogonalises it.

    Args:
        module: Its parameters are updated, shared ones once. Frozen ones get no update.
        lr: AdamW's learning rate.
        muon_lr: Muon's learning rate.
        weight_decay: Decoupled, on both sides; biases, norms and what ``no_decay`` names have none.
        momentum: Muon's.
        nesterov: Whether Muon's momentum is Nesterov's.
        betas: AdamW's.
        eps: AdamW's.
        fused: AdamW's: whether one kernel updates its side; None as torch decides.
        muon: Patterns of more matrices for Muon, as in a shell.
        adamw: Patterns of parameters for AdamW.
        no_decay: Patterns of parameters on AdamW's side without weight decay.
        adjust_lr: What a matrix of A rows and B columns multiplies ``muon_lr`` with: ``"original"``
            sqrt(max(1, A / B)), ``"match_rms_adamw"`` 0.2 sqrt(max(A, B)), which makes updates as large as
            AdamW's, so that its rate may be used (Liu et al. 2025, https://arxiv.org/abs/2502.16982).
        orthogonalisation_dtype: torch.float32 gives the same numbers on any number of ranks (and computes
            float64 parameters in float64); torch.bfloat16 is faster on accelerators and is what
            torch.optim.Muon does, but its rounding differs from layout to layout. Or torch.float64. A name
            serves too: ``"bfloat16"``.
        orthogonalisation_steps: Newton-Schulz iterations.

    Raises:
        PacelineError: for arguments that are not right, and a module without a hidden matrix.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> optimizer = MuonWithAdamW(model, lr=3e-4, muon_lr=0.02, weight_decay=0.1)
        >>> optimizer.split()
        {'muon': ['1.weight'], 'adamw': ['0.weight', '1.bias', '2.weight', '2.bias']}
    """

    whole_matrices: WholeMatrices
    """Computes with the whole of what lies in parts; a strategy with another layout replaces it."""

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: float = 1e-3,
        muon_lr: float = 0.02,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        fused: bool | None = None,
        muon: Sequence[str] = (),
        adamw: Sequence[str] = (),
        no_decay: Sequence[str] = ("*.bias",),
        adjust_lr: str = "original",
        orthogonalisation_dtype: torch.dtype | str = torch.float32,
        orthogonalisation_steps: int = 5,
    ) -> None:
        check_arguments(
            "MuonWithAdamW",
            lr=(lr, AMOUNT),
            muon_lr=(muon_lr, AMOUNT),
            weight_decay=(weight_decay, AMOUNT),
            momentum=(momentum, PART),
            nesterov=(nesterov, SWITCH),
            eps=(eps, AMOUNT),
            adjust_lr=(adjust_lr, one_of(*_ADJUSTMENTS)),
            orthogonalisation_steps=(orthogonalisation_steps, COUNT),
        )
        if not isinstance(module, nn.Module):
            raise PacelineError(
                "MuonWithAdamW takes a module, whose layers say what is a hidden matrix",
                code="wrong-object",
                got=type(module).__name__,
                fix="MuonWithAdamW(self, lr=...), not self.parameters()",
            )
        names = dict(module.named_parameters())
        matrices = muon_matrices(module, muon=muon, adamw=adamw)
        if not matrices:
            raise PacelineError(
                f"MuonWithAdamW: {type(module).__name__} has no hidden matrix for Muon",
                code="optimizer-not-supported",
                got=", ".join([*names][:6]) or "no parameter",
                fix='muon=["..."] names some, or use torch.optim.AdamW',
            )
        taken = set(matrices)
        self._split = {_MUON: matrices, _ADAMW: [name for name in names if name not in taken]}
        group: dict[str, Any] = {
            "params": [names[name] for name in matrices],
            "method": _MUON,
            "lr": muon_lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "adjust_lr": adjust_lr,
            "orthogonalisation_dtype": _name_of(orthogonalisation_dtype),
            "orthogonalisation_steps": orthogonalisation_steps,
        }
        others = decay_groups(module, weight_decay, no_decay=no_decay, method=_ADAMW, lr=lr)
        held = {id(parameter) for parameter in group["params"]}
        for other in others:
            other["params"] = [p for p in other["params"] if id(p) not in held]
        others = [other for other in others if other["params"]]
        # It fills in what it needs to know of its groups, which are ours too.
        self._inner = AdamW(others, lr=lr, betas=betas, eps=eps, fused=fused) if others else None
        super().__init__([group, *others], {"lr": lr})
        self.whole_matrices = in_place

    def split(self) -> dict[str, list[str]]:
        """Which parameters are updated by ``"muon"``, and which by ``"adamw"``; by name.

        Example:
            >>> model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Linear(4, 1, bias=False))
            >>> MuonWithAdamW(model).split()
            {'muon': ['0.weight'], 'adamw': ['1.weight']}
        """
        return {side: list(names) for side, names in self._split.items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient.

        Args:
            closure: Computes the loss and the gradients again, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["method"] == _MUON:
                self._update_matrices(group)
        if self._inner is not None:
            # Strategies and checkpoints replace both.
            self._inner.state = self.state
            self._inner.param_groups = [g for g in self.param_groups if g["method"] == _ADAMW]
            self._inner.step()
        return loss

    def _update_matrices(self, group: dict[str, Any]) -> None:
        rate, decay, momentum = float(group["lr"]), group["weight_decay"], group["momentum"]
        directions = partial(
            _directions,
            dtype=_DTYPES[group["orthogonalisation_dtype"]],
            steps=group["orthogonalisation_steps"],
            adjustment=_ADJUSTMENTS[group["adjust_lr"]],
        )
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        on_cpu = bool(trained) and trained[0].device.type == "cpu"
        at_once = _NUMBERS_AT_ONCE_ON_CPU if on_cpu else _NUMBERS_AT_ONCE
        for chunk in in_chunks(trained, Tensor.numel, at_once):
            updates = []
            for parameter in chunk:
                gradient, state = parameter.grad.to(parameter.dtype), self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
                updates.append(gradient.lerp(average, momentum) if group["nesterov"] else average)
            updates = self.whole_matrices(chunk, updates, directions, at_once)
            for parameter, update in zip(chunk, updates, strict=True):
                parameter.mul_(1 - rate * decay).add_(update, alpha=-rate)

    def __getstate__(self) -> dict[str, Any]:
        own = ("_split", "_inner", "whole_matrices")
        return super().__getstate__() | {name: vars(self)[name] for name in own}


def _directions(
    matrices: list[Tensor], dtype: torch.dtype, steps: int, adjustment: Callable[[int, int], float]
) -> list[Tensor]:
    """What is subtracted of whole matrices, but for the rate."""
    found = orthogonalise_all(matrices, dtype, steps)
    return [
        one.to(matrix.dtype) * adjustment(*matrix.shape)
        for one, matrix in zip(found, matrices, strict=True)
    ]


def _name_of(dtype: Any) -> str:
    """A name, which checkpoints hold as plain data."""
    for name, known in _DTYPES.items():
        if dtype is known or dtype == name:
            return name
    raise PacelineError(
        "MuonWithAdamW: orthogonalisation_dtype is none that it computes in",
        code="unknown-choice",
        got=dtype,
        allowed=", ".join(map(str, _DTYPES.values())),
    )
