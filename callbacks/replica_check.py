"""Compares the parameters of all ranks: replicas that drift apart end the run."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..argument_checks import DURATION, check_arguments
from ..durations import Cadence, Duration
from ..errors import PacelineError
from .base import Callback

if TYPE_CHECKING:
    from .trainer_view import TrainerView

_SHOWN = 6


class ReplicaCheck(Callback):
    """Compares checksums of the parameters over all ranks every so often; a difference ends the run.

    Every bit counts. A check reads each parameter on the host, less than a second for 1 GB, and sends one
    number for it. Parameters in shards are no replicas and are skipped; where all of them are, a line in
    the log reports it and nothing is compared. On one device it does nothing.

    Args:
        every: A duration: steps, epochs or time (rank 0's clock). Where ranks update a part of the
            parameters each and share the results, an update overwrites what was changed before it: there
            only ``every=1`` sees each change.

    Raises:
        PacelineError: on every rank, at the step that shows it. It names the first parameter that differs,
            in the module's order, and the ranks that are not like most of them (else not like rank 0).

    Example:
        >>> trainer = Trainer(callbacks=ReplicaCheck(every=100))
    """

    def __init__(self, every: Any = "1ep") -> None:
        check_arguments("ReplicaCheck", every=(every, DURATION))
        self.every = Duration.parse(every)
        self._cadence: Cadence | None = None
        self._names: set[str] = set()

    def on_fit_start(self, trainer: TrainerView) -> None:
        self._cadence = None
        if trainer.world_size == 1:
            return
        # Settled here: later a forward may have left what is sharded gathered.
        self._names = {
            name for name, p in trainer.module.named_parameters() if not trainer.strategy.is_sharded(p)
        }
        if not self._names:
            trainer.log_line(
                "ReplicaCheck compares nothing: every parameter is sharded, a part on each rank"
            )
            return
        self._cadence = Cadence(self.every, trainer.steps_per_epoch)
        self._cadence.restart(trainer.seconds())

    def on_step_boundary(self, trainer: TrainerView) -> None:
        if self._cadence is None or not trainer.is_due(self._cadence):
            return
        named = trainer.module.named_parameters()
        found = trainer.strategy.all_gather({n: _checksum(p) for n, p in named if n in self._names})
        difference = _difference(found)
        if difference is not None:
            raise PacelineError(
                "the ranks no longer hold the same parameters",
                where=f"after step {trainer.global_step}",
                got=difference,
                fix="change weights on every rank alike. Usual causes: a parameter set outside the "
                "optimizer on one rank; weights made from random draws or from buffers, which differ from "
                "rank to rank; gradients not averaged, as of a graph promised to be static that is not",
            )


def _checksum(parameter: Tensor) -> int:
    plain = parameter.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(plain.view(torch.uint8).numpy().data)


def _difference(found: list[dict[str, int]]) -> str | None:
    """What differs between the ranks' checksums by name; None: nothing does. The same text on each."""
    different = [name for name in found[0] if any(sums[name] != found[0][name] for sums in found)]
    if not different:
        return None
    values = [sums[different[0]] for sums in found]
    most, count = Counter(values).most_common(1)[0]
    majority = 2 * count > len(values)
    right = most if majority else values[0]
    wrong = [rank for rank, value in enumerate(values) if value != right]
    shown = ", ".join(map(str, wrong[:_SHOWN]))
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    who = f"rank {shown} holds" if len(wrong) == 1 else f"ranks {shown}{more} hold"
    than = f"the other {count} ranks" if majority else "rank 0"
    return (
        f"{who} another value of {different[0]} than {than}; "
        f"{len(different)} of {len(found[0])} parameters differ"
    )
