"""Gradients under manual optimization: which are a rank's own still, and averaging those over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ..errors import PacelineError
from .distributed import Distributed
from .torch_internals import writes_to

CHUNK = 25 * 2**20  # as torch's buckets
_AVERAGED = "_averaged_after"
"""Where a gradient keeps how often it had been written when it was averaged: gone with the tensor."""
_SHOWN = 6


def is_own(parameter: Tensor) -> bool:
    """Whether there is a gradient, assigned or changed since ``note_averaged``."""
    gradient = parameter.grad
    return gradient is not None and getattr(gradient, _AVERAGED, None) != writes_to([gradient])[0]


def note_averaged(parameters: Iterable[Tensor]) -> None:
    """The gradients of these are the same on all ranks."""
    for parameter in parameters:
        if parameter.grad is not None:
            # Parts of one tensor count writes together; of .data each counts its own.
            parameter.grad = parameter.grad.data
            setattr(parameter.grad, _AVERAGED, writes_to([parameter.grad])[0])


class OwnGradients:
    """Averages what a module's own backwards leave in ``.grad``, once.

    Ranks first agree on which gradients any of them has changed, in one word: no others are sent, and
    nothing is where all are averaged. What is averaged already stays as it is where others are added to it.

    Args:
        strategy: Averages.
        held: Gives the parameters of each optimizer, the same ones in the same order on every rank.

    Attributes:
        averages: Whether a backward averages; else the update does.
    """

    def __init__(self, strategy: Distributed, held: Callable[[], Sequence[Sequence[Tensor]]]) -> None:
        self._strategy, self._held = strategy, held
        self.averages = True

    def after_backward(self) -> None:
        """Average what is not averaged yet, unless ``averages`` is False. To be called on all ranks."""
        if self.averages:
            self._average(None)

    def before_update(self, number: int) -> None:
        """Average what is not averaged yet of the optimizer of this number. To be called on all ranks."""
        self._average(number)

    def _average(self, number: int | None) -> None:
        """Average the gradients of one optimizer, or of all.

        Raises:
            PacelineError: on every rank, where some are in a backward and others in an update.
        """
        if self._strategy.environment.world_size == 1:
            return
        groups = self._held()
        held = list(dict.fromkeys(p for group in groups for p in group))
        asked = set(held if number is None else groups[number])
        place = 0 if number is None else 1 + number
        flags = [p in asked and is_own(p) for p in held]
        word = torch.tensor([place, -place, *flags], dtype=torch.int32, device="cpu")
        highest, negated_lowest, *changed = self._strategy.collectives.all_reduce(word, "max").tolist()
        if highest != -negated_lowest:
            raise self._other_order("manual_backward()" if number is None else "optimizer.step()")
        own = [p for p, found in zip(held, changed, strict=True) if found]
        self._strategy.average_gradients(own, CHUNK)
        note_averaged(own)

    def _other_order(self, mine: str) -> PacelineError:
        calls = self._strategy.collectives.all_gather(mine)
        return PacelineError(
            "the ranks go backward and update in another order",
            code="ranks-differ",
            got=", ".join(f"rank {rank} calls {call}" for rank, call in enumerate(calls[:_SHOWN])),
            fix="call self.trainer.strategy.synchronise_gradients(False) first: then optimizer.step() "
            "averages, and each rank may call manual_backward as often as it likes",
        )
