"""Keeps what is not finite out of the weights: a loss or a gradient, of any rank.

A loss that is not finite is made to poison its own gradients, so that the reduction there is anyway carries
it to every rank. What is left in ``.grad`` is looked at once, before hooks, clipping and the update.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...errors import PacelineError
from ..runtime.fused import is_fused
from ..utils.nested import listed
from .nan_trace import Origin

if TYPE_CHECKING:
    from ..session import Session

_MOST_SKIPPED = 10
_MOST_RANKS = 4


def most_skipped(setting: str) -> int:
    """How many updates ``nonfinite=`` lets a run leave out: none, 10, or the number in ``"skip:100"``."""
    kind, _, number = setting.partition(":")
    return int(number or _MOST_SKIPPED) if kind == "skip" else 0


class Guard:
    """Looks at each step's losses and gradients, and holds the update back.

    On a CPU that costs a look at each number. On an accelerator it waits for the device once a step, except
    for fused optimizers: those leave the weights alone by themselves, and the flag is read a step late.

    Attributes:
        reads_losses: Whether losses are read at once, though that waits for the device.
    """

    def __init__(self, trainer: Session) -> None:
        self.trainer, self.strategy, self.state = trainer, trainer.strategy, trainer.state
        self.most = most_skipped(trainer.settings.nonfinite)
        self.reads_losses = self.most > 0
        self._seen: dict[int, float] = {}
        self._unread: list[Tensor] = []
        self._automatic = trainer.module.automatic_optimization
        optimizers = trainer.optimization.optimizers
        self.late = (
            trainer.strategy.device.type != "cpu"
            and not self.most
            and self._automatic
            and is_fused(optimizers[0])
        )
        scales = trainer.strategy.precision.scales  # gradients may overflow, and it leaves them out
        self._look = _nothing_looks if scales else trainer.strategy.find_nonfinite
        self._word: array[float] | None = None
        if trainer.strategy.device.type == "cpu":  # memory that Python reads without asking torch
            self._word = array("f", [0.0])
            self._flag = torch.frombuffer(self._word, dtype=torch.float32).squeeze()
        else:
            self._flag = torch.zeros((), device=trainer.strategy.device)
        self._before: tuple[Tensor, torch.Event | None, str] | None = None

    def poison(self, loss: Tensor, micro_batch: int, value: float) -> Tensor:
        """A loss whose value is known not to be finite: its gradients will not be either."""
        self._seen[micro_batch] = value
        return loss * math.nan

    def poison_unread(self, loss: Tensor) -> Tensor:
        """A loss on an accelerator, which is not waited for."""
        self._unread.append(loss.detach())
        poisoned: Tensor = loss * (1 + 0 * loss.detach())
        return poisoned

    def watched(self, loss: Tensor) -> Tensor:
        """A loss under manual optimization."""
        if not loss.is_cpu and not self.reads_losses:
            return self.poison_unread(loss)
        value = loss.item()
        return loss if math.isfinite(value) else self.poison(loss, 0, value)

    def finds(self, optimizer: Optimizer) -> bool:
        """Whether the update is to be held back; gradients are reduced and unscaled. On all ranks alike.

        Raises:
            PacelineError: for a loss of this rank that no gradient comes from.
        """
        looked = self._look(optimizer, self._flag)
        if self._word is not None and not (self._word[0] or self._seen or self.late):
            return False  # on a CPU, as a rule, where no loss is left unread
        unread, self._unread = self._unread, []
        if not looked:
            return False
        if self.late:
            return self._finds_late(optimizer)
        found = self._flag.item() > 0
        if found:
            self._flag.zero_()
            self._seen |= _not_finite(unread)
        elif self._seen and self._automatic:  # a loss that no gradient comes from
            if self.trainer.world == 1:
                return True
            if not self.most:
                raise self._error(None, [self._mine(0)])
            self._seen.clear()
        return found

    def _finds_late(self, optimizer: Optimizer) -> bool:
        """Look at the flag of the step before, which is here by now; this step's goes to the optimizer."""
        flag = self._flag
        optimizer.found_inf, optimizer.grad_scale = flag, None  # type: ignore[attr-defined]
        self.finish()
        copied = flag.to("cpu", non_blocking=True, copy=True)
        arrived = None
        if not flag.is_cpu:
            arrived = torch.Event(flag.device)
            arrived.record()
        self._before = (copied, arrived, self.trainer.place)
        return False

    def finish(self) -> None:
        """Look at the last flag, where one is on its way.

        Raises:
            PacelineError: where a loss or gradient was not finite.
        """
        before, self._before = self._before, None
        if before is None:
            return
        copied, arrived, place = before
        if arrived is not None:
            arrived.synchronize()
        if copied.item():
            raise PacelineError(
                "a loss or a gradient is not finite; nothing was updated from there on",
                where=place,
                fix=_FIX,
            )

    def skipped_by_strategy(self) -> bool:
        """The strategy left an update out by itself: whether a loss or gradient is to blame."""
        if not self.strategy.precision.scales:
            return True
        return any(self.strategy.gather(bool(self._seen)))

    def hold_back(
        self,
        optimizer: Optimizer,
        micro_batches: int = 1,
        find_origin: Callable[[list[list[Any]]], Origin] | None = None,
    ) -> None:
        """Leave the update out, where that is allowed; to be called on all ranks.

        Args:
            find_origin: Given the samples of each micro-batch, looks where it came from.

        Raises:
            PacelineError: naming the rank and the samples it came from.
        """
        mine = self._mine(micro_batches)
        optimizer.zero_grad(set_to_none=True)
        everyone = self.strategy.gather(mine)
        if self.state.skipped_steps < self.most:
            self.state.skipped_steps += 1
            what, where = _told(everyone)
            self.trainer.say(
                f"{self.trainer.place}: {what}; the update is skipped "
                f"({self.state.skipped_steps} of at most {self.most}){where}"
            )
            return
        samples = self._samples(micro_batches)
        raise self._error(find_origin(samples) if find_origin and not self.most else None, everyone)

    def _samples(self, micro_batches: int) -> list[list[Any]]:
        return [self.trainer.feeds[0].samples_of(index) for index in range(micro_batches)]

    def _mine(self, micro_batches: int) -> dict[str, Any]:
        seen, self._seen = self._seen, {}
        samples = self._samples(max(micro_batches, *(index + 1 for index in seen), 1))
        return {
            "rank": self.trainer.rank_of(min(seen, default=0)),
            "losses": [seen[index] for index in sorted(seen)],
            "samples": [sample for index in sorted(seen) for sample in samples[index]],
            "all": [sample for part in samples for sample in part],
        }

    def _error(self, origin: Origin | None, everyone: list[dict[str, Any]]) -> PacelineError:
        what, where = _told(everyone)
        if origin is not None and origin.rank is not None:
            where = f", rank {origin.rank}" + _shown(origin.samples)
        told = [origin.told] if origin is not None else []
        if self.most:
            told.append(f"{self.most} updates were left out before, and no more may be")
        return PacelineError(
            f"{what}; nothing was updated",
            where=f"{self.trainer.place}{where}",
            got="; ".join(told) or "the gradients of all other losses",
            fix=_FIX,
        )


_FIX = (
    "look at those samples, lower the learning rate or set clip_grad_norm; "
    'nonfinite="skip" leaves such steps out, 10 at most'
)


def _nothing_looks(optimizer: Optimizer, found: Tensor) -> bool:
    return False


def _told(everyone: list[dict[str, Any]]) -> tuple[str, str]:
    """What is not finite, and on which rank and samples."""
    for one in everyone:
        if one["losses"]:
            return f"the loss is {one['losses'][0]}", f", rank {one['rank']}" + _shown(one["samples"])
    if len(everyone) == 1:
        return "a gradient is not finite", _shown(everyone[0]["all"])
    parts = [f"rank {rank}{_shown(one['all'])}" for rank, one in enumerate(everyone)]
    return "a gradient is not finite", ", on " + "; ".join(parts[:_MOST_RANKS])


def _shown(samples: list[Any]) -> str:
    if not samples:
        return ""
    return f", dataset {'indices' if len(samples) > 1 else 'index'} {listed(samples)}"


def _not_finite(losses: list[Tensor]) -> dict[int, float]:
    values = [loss.item() for loss in losses]
    return {index: value for index, value in enumerate(values) if not math.isfinite(value)}
