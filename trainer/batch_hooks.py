"""The hooks that a batch passes on its way to the device: of a ``TrainModule`` or of a ``DataModule``."""

from __future__ import annotations

from typing import Any

from .utils.nested import map_tensors, to_device


class BatchHooks:
    """Override what you need; trailing arguments may be omitted. A DataModule's replaces a module's.

    Of several training loaders each batch passes by itself, with its loader's ``dataloader_idx``.

    They are called in ``fit``, ``validate``, ``test`` and ``predict``, on every rank with its own batches.
    What they draw from torch, ``random`` and numpy is seeded by the batch's position in the data: it
    changes no other draw, and a resumed run draws the same.
    """

    def on_before_batch_transfer(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, dataloader_idx)``: the batch to be transferred; it is on the host yet.

        Example:
            >>> class Renamed(Net):
            ...     def on_before_batch_transfer(self, batch):
            ...         return batch[0].float(), batch[1]
            >>> run = trainer.fit(Renamed(), train_loader)
        """
        return args[0] if args else kwargs["batch"]

    def transfer_batch_to_device(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, device, dataloader_idx)``: the batch on the device.

        Override it for batches of your own class, or to leave parts on the host. The default moves tensors
        and objects with ``.to`` of nested batches. Where it is overridden, floats get the dtype of
        ``precision="bf16-true"``, ``"fp16-true"`` or ``"64"`` afterwards.

        Example:
            >>> class KeepsTargets(Net):
            ...     def transfer_batch_to_device(self, batch, device):
            ...         return super().transfer_batch_to_device(batch[0], device), batch[1]
            >>> run = trainer.fit(KeepsTargets(), train_loader)
        """
        given = dict(zip(("batch", "device"), args, strict=False)) | kwargs
        return map_tensors(given["batch"], lambda one: to_device(one, given["device"]))

    def on_after_batch_transfer(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, dataloader_idx)``: the batch as steps get it, such as augmented on the device.

        Example:
            >>> class Noisy(Net):
            ...     def on_after_batch_transfer(self, batch):
            ...         return batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]
            >>> run = trainer.fit(Noisy(), train_loader)
        """
        return args[0] if args else kwargs["batch"]


BATCH_HOOKS = tuple(name for name in vars(BatchHooks) if not name.startswith("_"))
