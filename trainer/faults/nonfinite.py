"""Keeps what is not finite out of the weights: a loss or a gradient, of any rank.

A loss that is not finite is made to poison its own gradients, so that the reduction of gradients carries it
to every rank. The result in ``.grad`` is checked once, before hooks, clipping and the update.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...errors import PacelineError
from ...strategies import Strategy
from ..runtime.fused import is_fused
from ..state import TrainState
from ..utils.nested import listed
from .nan_trace import Origin

_MOST_SKIPPED = 10
_MOST_RANKS = 4


@dataclass(frozen=True)
class NonfinitePolicy:
    """What happens at a loss or gradient that is not finite.

    Args:
        most_skipped: So many updates may be skipped in a run; 0: the first one is an error.
    """

    most_skipped: int = 0

    @classmethod
    def parse(cls, setting: str) -> NonfinitePolicy | None:
        """What ``Trainer(nonfinite=...)`` means: ``"raise"``, ``"skip"``, ``"skip:9"``; None: ``"ignore"``.

        Example:
            >>> NonfinitePolicy.parse("skip:100")
            NonfinitePolicy(most_skipped=100)
        """
        if setting == "ignore":
            return None
        kind, _, number = setting.partition(":")
        return cls(int(number or _MOST_SKIPPED) if kind == "skip" else 0)


class Guard:
    """Checks each step's losses and gradients, and holds the update back.

    On a CPU that costs a read of each number. On an accelerator it waits for the device once a step, except
    for fused optimizers: those skip the update by themselves, and the flag is read a step late.

    Args:
        strategy: Checks gradients, over all ranks.
        state: Counts skipped updates.
        optimizers: Those of the run; with automatic optimization it is one.
        policy: What happens.
        samples_of: Gives the dataset indices of a micro-batch of the current step.
        log_line: Takes a line for the log.
        automatic: False under manual optimization.

    Attributes:
        reads_losses: Whether losses are read at once, though that waits for the device.
        late: Whether the flag of a step is read in the next one: with a fused optimizer on an accelerator.
    """

    def __init__(
        self,
        strategy: Strategy,
        state: TrainState,
        optimizers: Sequence[Optimizer],
        policy: NonfinitePolicy,
        *,
        samples_of: Callable[[int], list[Any]],
        log_line: Callable[[str], None],
        automatic: bool = True,
    ) -> None:
        self.strategy, self.state = strategy, state
        self._policy, self._samples_of, self._log_line = policy, samples_of, log_line
        self.reads_losses = policy.most_skipped > 0
        self._seen: dict[int, float] = {}
        self._unread: list[Tensor] = []
        self._no_loss = False
        self._automatic = automatic
        on_cpu = strategy.device.type == "cpu"
        self.late = not on_cpu and not self.reads_losses and automatic and is_fused(optimizers[0])
        # Scaled gradients may overflow, and the precision skips those updates itself.
        self._check = _no_check if strategy.precision.scales else strategy.find_nonfinite
        self._word: array[float] | None = None
        if on_cpu:  # memory that Python reads without asking torch
            self._word = array("f", [0.0])
            self._flag = torch.frombuffer(self._word, dtype=torch.float32).squeeze()
        else:
            self._flag = torch.zeros((), device=strategy.device)
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

    def forget(self) -> None:
        """The step under way is skipped for another reason than its losses."""
        self._seen.clear()
        self._unread.clear()

    def expect_nan(self) -> None:
        """The NaN that gradients are about to show is no fault: this rank has no loss for the step."""
        self._no_loss = True

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
        checked = self._check(optimizer, self._flag)
        if self._word is not None and not (self._word[0] or self._seen or self.late):
            return False  # on a CPU, as a rule, where no loss is left unread
        unread, self._unread = self._unread, []
        if not checked:
            return False
        if self.late:
            return self._finds_late(optimizer)
        found = self._flag.item() > 0
        if found:
            self._flag.zero_()
            self._seen |= _not_finite(unread)
        elif self._seen and self._automatic:  # a loss that no gradient comes from
            if self.strategy.collectives.world_size == 1:
                return True
            if not self._policy.most_skipped:
                raise self._error(None, [self._mine(0)])
            self._seen.clear()
        return found

    def _finds_late(self, optimizer: Optimizer) -> bool:
        """Read the flag of the step before, which has arrived by now; this step's goes to the optimizer."""
        flag = self._flag
        optimizer.found_inf, optimizer.grad_scale = flag, None  # type: ignore[attr-defined]
        self.finish()
        copied = flag.to("cpu", non_blocking=True, copy=True)
        arrived = None
        if not flag.is_cpu:
            arrived = torch.Event(flag.device)
            arrived.record()
        self._before = (copied, arrived, self.state.step_label)
        return False

    def finish(self) -> None:
        """Read the last flag, where one is pending.

        Raises:
            PacelineError: where a loss or gradient was not finite.
        """
        if self._before is None:
            return
        copied, arrived, place = self._before
        if arrived is not None:
            arrived.synchronize()
        if copied.item():
            raise PacelineError(
                "a loss or a gradient is not finite; optimizer steps were skipped from this step on",
                code="not-finite",
                where=place,
                fix=_FIX,
            )
        self._before = None

    def skipped_by_strategy(self) -> bool:
        """The strategy skipped an update by itself: whether a loss or gradient is to blame."""
        if not self.strategy.precision.scales:
            return True
        return bool(
            self.strategy.collectives.all_reduce(torch.tensor([bool(self._seen)], dtype=torch.int64), "max")
        )

    def hold_back(
        self,
        optimizer: Optimizer,
        micro_batches: int = 1,
        find_origin: Callable[[list[list[Any]]], Origin] | None = None,
    ) -> bool:
        """Skip the update, where that is allowed. To be called on all ranks.

        Args:
            optimizer: Its gradients are cleared.
            micro_batches: Micro-batches of this rank in the step.
            find_origin: Given the samples of each micro-batch, finds where it came from.

        Returns:
            Whether a rank has no loss for the step; nothing is wrong then.

        Raises:
            PacelineError: naming the rank and the samples it came from.
        """
        mine = self._mine(micro_batches)
        optimizer.zero_grad(set_to_none=True)
        everyone = self.strategy.collectives.all_gather(mine)
        if any(one["no loss"] for one in everyone):
            return True
        most = self._policy.most_skipped
        if self.state.skipped_steps < most:
            self.state.skipped_steps += 1
            what, where = _cause(everyone)
            self._log_line(
                f"{self.state.step_label}: {what}; the update is skipped "
                f"({self.state.skipped_steps} of at most {most}){where}"
            )
            return False
        samples = self._samples(micro_batches)
        raise self._error(find_origin(samples) if find_origin and not most else None, everyone)

    def skip_no_more(self) -> None:
        """The next update that would be skipped is an error, whatever the policy allows."""
        self._policy = NonfinitePolicy()

    def _samples(self, micro_batches: int) -> list[list[Any]]:
        return [self._samples_of(index) for index in range(micro_batches)]

    def _mine(self, micro_batches: int) -> dict[str, Any]:
        seen, self._seen = self._seen, {}
        no_loss, self._no_loss = self._no_loss, False
        samples = self._samples(max(micro_batches, *(index + 1 for index in seen), 1))
        return {
            "no loss": no_loss,
            "rank": self.strategy.collectives.rank_of(min(seen, default=0)),
            "losses": [seen[index] for index in sorted(seen)],
            "samples": [sample for index in sorted(seen) for sample in samples[index]],
            "all": [sample for part in samples for sample in part],
        }

    def _error(self, origin: Origin | None, everyone: list[dict[str, Any]]) -> PacelineError:
        what, where = _cause(everyone)
        if origin is not None and origin.rank is not None:
            where = f", rank {origin.rank}" + _shown(origin.samples)
        found = [origin.description] if origin is not None else []
        if self._policy.most_skipped:
            found.append(f"{self._policy.most_skipped} updates were skipped before, the most allowed")
        return PacelineError(
            f"{what}; nothing was updated",
            code="not-finite",
            where=f"{self.state.step_label}{where}",
            got="; ".join(found) or "the gradients of all other losses",
            fix=_FIX,
        )


_FIX = (
    "inspect those samples, lower the learning rate or set clip_grad_norm; "
    'nonfinite="skip" skips such steps, at most 10'
)


def _no_check(optimizer: Optimizer, found: Tensor) -> bool:
    return False


def _cause(everyone: list[dict[str, Any]]) -> tuple[str, str]:
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
