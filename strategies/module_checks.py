"""Modules that a strategy cannot train as they are."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from ..errors import PacelineError
from .tensors.sharding import is_sharded


def refuse_sharded(module: nn.Module) -> None:
    """Refuse a module whose parameters lie in shards that another strategy made.

    Raises:
        PacelineError: with the ways to a whole one.
    """
    for name, parameter in module.named_parameters():
        if is_sharded(parameter):
            raise PacelineError(
                f"{type(module).__name__} is still sharded by the strategy of an earlier run",
                code="module-still-sharded",
                got=f"a sharded {name}",
                fix=f"{type(module).__name__}.load_from_checkpoint(run.latest) is a complete one; or "
                "resume with the same strategy",
            )


def refuse_scalars(module: nn.Module, strategy: str) -> None:
    """Refuse parameters without a dimension, for a strategy that cannot shard them.

    Raises:
        PacelineError: naming them, and the shape that serves.
    """
    scalars = [name for name, p in module.named_parameters() if p.ndim == 0]
    if scalars:
        raise PacelineError(
            f"strategy {strategy!r} cannot hold parameters without a dimension",
            code="module-not-shardable",
            got=", ".join(scalars[:6]),
            fix="give them shape (1,): nn.Parameter(torch.zeros(1))",
        )


def refuse_compiled_copies(module: nn.Module, strategy: str) -> None:
    """Refuse parts made by ``torch.compile(part)``: it traces what a strategy hooked into the part itself.

    Raises:
        PacelineError: naming them, and the ways that work.
    """
    end = "._orig_mod"
    found = [name.removesuffix(end) for name, _ in module.named_modules() if name.endswith(end)]
    if found:
        raise PacelineError(
            f"strategy {strategy!r} cannot train what torch.compile(part) returns",
            code="module-not-shardable",
            got=", ".join(f"self.{name}" for name in found[:6]),
            fix=f"self.{found[0]}.compile() on the part itself, in its place; or "
            "Trainer(compile='blocks'); or strategy='deepspeed_stage_2' or 'fsdp'",
        )


def refuse_frozen_groups(strategy: str, optimizer: Optimizer, names: dict[int, str]) -> None:
    """Refuse a parameter group that is frozen as a whole.

    Args:
        strategy: The name, for the message.
        optimizer: Whose groups are meant.
        names: By the ``id`` of each parameter.

    Raises:
        PacelineError: naming what is in it.
    """
    for group in optimizer.param_groups:
        if not any(p.requires_grad for p in group["params"]):
            found = [names[id(p)] for p in group["params"]]
            raise PacelineError(
                f"strategy {strategy!r} takes no parameter group of which nothing is trained",
                code="optimizer-not-supported",
                got=", ".join(found[:6]),
                fix="leave frozen parameters out of the optimizer, or strategy='fsdp'",
            )
