"""What Lightning's strategy shows and does, by ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .....errors import nearest
from ..utilities.cloud_io import get_filesystem

_OPS = {"sum": "sum", "mean": "mean", "avg": "mean", "min": "amin", "max": "amax"}


class StrategyView:
    """``trainer.strategy``: other names are those of the strategy of ``paceline.strategies``.

    Example:
        >>> import paceline.compat.lightning as L
        >>> L.Trainer(accelerator="cpu").strategy.root_device
        device(type='cpu')
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        ours = vars(self)["_trainer"].ours.strategy
        if hasattr(ours, name):
            return getattr(ours, name)
        near = nearest(name, [one for one in (*dir(type(self)), *dir(ours)) if one[0] != "_"])
        raise AttributeError(
            f"strategy has no attribute {name!r}" + (f"; did you mean {near}?" if near else "")
        )

    @property
    def ours(self) -> Any:
        """The strategy of ``paceline.strategies``."""
        return self._trainer.ours.strategy

    @property
    def root_device(self) -> torch.device:
        """The device of this rank."""
        found: torch.device = self._trainer.ours.strategy.device
        return found

    @property
    def global_rank(self) -> int:
        """The number of this process among all."""
        return int(self._trainer.global_rank)

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine."""
        return int(self._trainer.local_rank)

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return int(self._trainer.world_size)

    @property
    def is_global_zero(self) -> bool:
        """True on the one process that writes files."""
        return bool(self._trainer.is_global_zero)

    @property
    def lightning_module(self) -> Any:
        """The module that runs, or ran last."""
        return self._trainer.lightning_module

    _lightning_module = lightning_module

    @property
    def model(self) -> Any:
        """The same: nothing is wrapped around it."""
        return self.lightning_module

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the fit."""
        found: list[Any] = self._trainer.optimizers
        return found

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The ``state_dict`` of an optimizer of the fit."""
        found: dict[str, Any] = optimizer.state_dict()
        return found

    def remove_checkpoint(self, filepath: Any) -> None:
        """Delete a checkpoint, a file or a folder; on the process that writes files."""
        files = get_filesystem(filepath)
        if self.is_global_zero and files.exists(filepath):
            files.rm(str(filepath), recursive=True)

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        self._trainer.ours.ranks.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of one rank, on all."""
        return self._trainer.ours.ranks.broadcast(obj, src)

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """As ``LightningModule.all_gather``."""
        return self.lightning_module.all_gather(tensor, group, sync_grads)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: str = "mean") -> Any:
        """A tensor or a number over all ranks.

        Args:
            tensor: The same shape on all of them.
            group: Accepted: all ranks take part.
            reduce_op: ``"mean"``, ``"sum"``, ``"min"`` or ``"max"``.
        """
        if not isinstance(tensor, Tensor) or self.world_size == 1:
            return tensor
        every = torch.stack(self._trainer.ours.ranks.gather_data(tensor))
        return getattr(every, _OPS[str(reduce_op).lower()])(0)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all ranks, or any of them, say so."""
        found = self._trainer.ours.ranks.gather_data(bool(decision))
        return bool((min if all else max)(found))
