"""Computing with whole matrices of which each rank has a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from ..errors import PacelineError


class WholeMatrices(Protocol):
    """Applies a function of whole matrices to what lies in parameters."""

    def __call__(
        self,
        parameters: Sequence[Tensor],
        updates: Sequence[Tensor],
        function: Callable[[list[Tensor]], list[Tensor]],
        at_once: int,
    ) -> list[Tensor]:
        """What the function makes of the whole matrices, in parts that lie as those of ``updates``.

        To be called on all ranks, for the same parameters in the same order.

        Args:
            parameters: Of the optimizer.
            updates: As many, of the same shapes and placements.
            function: Takes whole matrices and returns as many of the same shapes and dtypes.
            at_once: How many numbers there may be in the matrices of one call of it, if it is not a single
                matrix. For those whose ``parameters`` hold several.
        """


def in_place(
    parameters: Sequence[Tensor],
    updates: Sequence[Tensor],
    function: Callable[[list[Tensor]], list[Tensor]],
    at_once: int,
) -> list[Tensor]:
    """For plain tensors, and for torch's ``DTensor``, whose whole is gathered.

    Raises:
        PacelineError: for anything but matrices.
    """
    for update in updates:
        if update.ndim != 2:
            raise PacelineError(
                "Muon needs whole matrices, and the strategy gives the optimizer something else",
                code="optimizer-not-supported",
                got=f"a parameter of shape {list(update.shape)}",
                fix="strategy='single' or one that leaves parameters in their shape",
            )
    found = function([_whole(update) for update in updates])
    return [_part(one, update) for one, update in zip(found, updates, strict=True)]


def _whole(update: Tensor) -> Tensor:
    if not hasattr(update, "full_tensor"):
        return update
    # Parts that lie in the host's memory are gathered on the device: there its process group works.
    on_device: Any = update.to(update.device_mesh.device_type)  # type: ignore[attr-defined]
    whole: Tensor = on_device.full_tensor()
    return whole


def _part(whole: Tensor, update: Tensor) -> Tensor:
    if not hasattr(update, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(update, DTensor)
    parts = distribute_tensor(whole, update.device_mesh, update.placements, src_data_rank=None)
    return parts.to(update.device)
