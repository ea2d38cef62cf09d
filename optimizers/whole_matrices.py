"""Computing with the whole of a matrix of which each rank has a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from ..errors import PacelineError


class WholeMatrices(Protocol):
    """Applies a function of whole matrices to what lies in a parameter."""

    def __call__(self, parameter: Tensor, update: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """What the function makes of the whole matrices, in parts that lie as those of ``update``.

        To be called on all ranks, for the same parameters in the same order.

        Args:
            parameter: One of the optimizer's.
            update: Of the same shape and placement.
            function: Takes a whole matrix and returns one of the same shape and dtype.
        """


def in_place(parameter: Tensor, update: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """For plain tensors, and for torch's ``DTensor``, whose whole is gathered.

    Raises:
        PacelineError: for anything but a matrix.
    """
    if update.ndim != 2:
        raise PacelineError(
            "Muon needs whole matrices, and the strategy gives the optimizer something else",
            got=f"a parameter of shape {list(update.shape)}",
            fix="strategy='single' or one that leaves parameters in their shape",
        )
    if not hasattr(update, "full_tensor"):
        return function(update)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(update, DTensor)
    mesh = update.device_mesh
    # Parts that lie in the host's memory are gathered on the device: there its process group works.
    on_device: Any = update.to(mesh.device_type)
    whole = on_device.full_tensor()
    parts = distribute_tensor(function(whole), mesh, update.placements, src_data_rank=None)
    return parts.to(update.device)
