"""``BaseFinetuning``: freeze parts of a module, and train them from an epoch on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .callback import Callback

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class BaseFinetuning(Callback):
    """Subclass it: ``freeze_before_training`` freezes, ``finetune_function`` unfreezes epoch by epoch.

    A run that resumes calls ``finetune_function`` for the epochs before, so that its optimizer has the
    groups of the checkpoint.

    Source: https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.callbacks.BaseFinetuning.html
    """

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze what is not trained from the start; ``self.freeze(pl_module.backbone)``."""
        raise NotImplementedError

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        """Called at the start of each epoch for each optimizer."""
        raise NotImplementedError

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.freeze_before_training(pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._finetune(pl_module, trainer.current_epoch, trainer.optimizers)

    def resumed(self, pl_module: Any, optimizers: list[Optimizer], epochs: int) -> None:
        for epoch in range(epochs):
            self._finetune(pl_module, epoch, optimizers)

    def _finetune(self, pl_module: Any, epoch: int, optimizers: list[Optimizer]) -> None:
        for optimizer in optimizers:
            self.finetune_function(pl_module, epoch, optimizer)

    # -- for subclasses ------------------------------------------------------------------------

    @staticmethod
    def flatten_modules(modules: Any) -> list[nn.Module]:
        """The modules that have parameters themselves, and all leaves, of one module or several."""
        if isinstance(modules, nn.ModuleDict):
            modules = modules.values()
        given = (
            [modules] if isinstance(modules, nn.Module) and not isinstance(modules, Iterable) else modules
        )
        found: list[nn.Module] = []
        for one in given:
            parts = one.modules() if isinstance(one, nn.Module) else BaseFinetuning.flatten_modules(one)
            found += [m for m in parts if not [*m.children()] or [*m.parameters(recurse=False)]]
        return found

    @staticmethod
    def filter_params(modules: Any, train_bn: bool = True, requires_grad: bool = True) -> Iterator[Any]:
        """The parameters that are (not) trained; without batch norms where ``train_bn`` is False."""
        for module in BaseFinetuning.flatten_modules(modules):
            if train_bn or not isinstance(module, _NORMS):
                yield from (p for p in module.parameters(recurse=False) if p.requires_grad == requires_grad)

    @staticmethod
    def make_trainable(modules: Any) -> None:
        """Train these modules."""
        for module in BaseFinetuning.flatten_modules(modules):
            if isinstance(module, _NORMS):
                module.track_running_stats = True
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(True)

    @staticmethod
    def freeze_module(module: nn.Module) -> None:
        """Do not train this module's own parameters; a batch norm keeps no statistics."""
        if isinstance(module, _NORMS):
            module.track_running_stats = False
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)

    @staticmethod
    def freeze(modules: Any, train_bn: bool = True) -> None:
        """Do not train these modules; batch norms are trained where ``train_bn`` is True."""
        for module in BaseFinetuning.flatten_modules(modules):
            if isinstance(module, _NORMS) and train_bn:
                BaseFinetuning.make_trainable(module)
            else:
                BaseFinetuning.freeze_module(module)

    @staticmethod
    def filter_on_optimizer(optimizer: Optimizer, params: Iterable[Any]) -> list[Any]:
        """Those parameters that the optimizer does not have yet."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [parameter for parameter in params if id(parameter) not in held]

    @staticmethod
    def unfreeze_and_add_param_group(
        modules: Any,
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Train these modules, as a new group of the optimizer.

        Args:
            modules: One or several.
            optimizer: Gets the parameters that it does not have yet.
            lr: The group's learning rate.
            initial_denom_lr: Without ``lr``, the first group's rate is divided by this.
            train_bn: Whether batch norms are among them.
        """
        BaseFinetuning.make_trainable(modules)
        rate = optimizer.param_groups[0]["lr"] / initial_denom_lr if lr is None else float(lr)
        params = BaseFinetuning.filter_params(modules, train_bn=train_bn, requires_grad=True)
        new = BaseFinetuning.filter_on_optimizer(optimizer, params)
        if new:
            optimizer.add_param_group({"params": new, "lr": rate})
