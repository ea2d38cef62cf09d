"""``BackboneFinetuning``: train the head first, the backbone from an epoch on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..... import PacelineError
from .finetuning import BaseFinetuning


def multiplicative(epoch: int) -> float:
    """Twice the rate in each epoch."""
    return 2.0


class BackboneFinetuning(BaseFinetuning):
    """Freezes ``pl_module.backbone``, then trains it at a rate that grows to the head's.

    Args:
        unfreeze_backbone_at_epoch: From this epoch on.
        lambda_func: By what the rate is multiplied in an epoch; gets its number, from 1.
        backbone_initial_ratio_lr: The first rate as a part of the head's.
        backbone_initial_lr: The first rate itself.
        should_align: Whether the rate stops growing at the head's.
        initial_denom_lr: Accepted: the first rate is given by the two above.
        train_bn: Whether batch norms of the backbone are trained.
        verbose: Print both rates.
        rounding: Digits of what is printed.

    Raises:
        PacelineError: at the start of a fit, for a module without a ``backbone``.

    Source: https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.callbacks.BackboneFinetuning.html
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = multiplicative,
        backbone_initial_ratio_lr: float = 0.1,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ) -> None:
        self.unfreeze_backbone_at_epoch, self.lambda_func = unfreeze_backbone_at_epoch, lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr, self.should_align = backbone_initial_lr, should_align
        self.train_bn, self.verbose, self.rounding = train_bn, verbose, rounding
        self.previous_backbone_lr: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """The backbone's rate."""
        return {"previous_backbone_lr": self.previous_backbone_lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        self.previous_backbone_lr = state_dict["previous_backbone_lr"]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Freeze the backbone."""
        if not isinstance(getattr(pl_module, "backbone", None), nn.Module):
            raise PacelineError(
                f"BackboneFinetuning needs {type(pl_module).__name__}.backbone, a part of the module",
                code="part-not-found",
                fix="self.backbone = ... in the constructor, or a BaseFinetuning of your own",
            )
        super().setup(trainer, pl_module, stage)

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        head = optimizer.param_groups[0]["lr"]
        if epoch < self.unfreeze_backbone_at_epoch:
            return
        if epoch == self.unfreeze_backbone_at_epoch:
            given = self.backbone_initial_lr
            rate = head * self.backbone_initial_ratio_lr if given is None else given
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, rate, train_bn=self.train_bn)
        else:
            assert self.previous_backbone_lr is not None
            rate = self.lambda_func(epoch + 1) * self.previous_backbone_lr
            rate = head if self.should_align and rate > head else rate
            optimizer.param_groups[-1]["lr"] = rate
        self.previous_backbone_lr = rate
        if self.verbose:
            pl_module.print(
                f"learning rate: {round(head, self.rounding)}, backbone: {round(rate, self.rounding)}"
            )
