"""Turns what the user gave as training or evaluation data into steps of micro-batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...common.faultpoints import faultpoint
from ...errors import PacelineError
from ...strategies.ranks.collectives import Collectives
from ..faults.signals import Signals
from ..rng import cpu_state, derive, set_cpu_state


class MicroBatches(NamedTuple):
    """The micro-batches of one step, as a feed gives them.

    Args:
        batches: Those of this rank, as they were read and moved to the device.
        sizes: The samples in each of them.
        total: The samples in the step over all ranks; None where this rank cannot know.
        advance: How far the position in the epoch moves.
    """

    batches: list[Any]
    sizes: list[int]
    total: int | None
    advance: int


@dataclass(frozen=True)
class FeedSettings:
    """What every feed needs to know.

    Args:
        ranks: Among whom the samples are divided; where there are others, their data is compared.
        simulated_ranks: For how many ranks this process takes the micro-batches, one after the other.
        limit: At most so many of the loader's batches an epoch (int), or that part of them (float).
        limit_per_rank: Each rank has so many; else they are counted over all, the same on any number.
        fixed_order: Every epoch in the first one's order (``overfit_batches``).
        on_error: What happens to what cannot be read; as ``Trainer(on_data_error=...)``.
        transfer: Brings a batch to the device; None where it is there already.
        hooked_transfer: In its place where there are batch hooks; takes the batch, loader number, a seed.
        dataloader_idx: The number of this loader, from 0.
        signals: Ends a read of data that is waited for.
        log_line: Takes lines for the log.
    """

    seed: int = 0
    ranks: Collectives = field(default_factory=Collectives)
    accumulate: int = 1
    simulated_ranks: int = 1
    global_batch: int | None = None
    limit: int | float | None = None
    limit_per_rank: bool = False
    fixed_order: bool = False
    on_error: str = "raise"
    transfer: Callable[[Any], Any] | None = None
    hooked_transfer: Callable[[Any, int, int], Any] | None = None
    dataloader_idx: int = 0
    signals: Signals = field(default_factory=Signals)
    log_line: Callable[[str], None] = print


class Feed(ABC):
    """One pass over the data is one ``steps(epoch, position)``.

    Attributes:
        data: What the user gave.
        steps_per_epoch: Steps in a whole epoch; None where the data has no length.
        step_size: Samples in a full step; None where batches decide.
        micro_batches: Micro-batches in a full step.
        even: Whether each step is cut into micro-batches of one size; None where only reading shows it.
        reloads: Whether loaders are made again during a run, and may depend on its state.
        ended: True from the moment the epoch's last step is returned, where that can be known.
    """

    data: Any
    steps_per_epoch: int | None = None
    step_size: int | None = None
    micro_batches: int = 1
    even: bool | None = None
    reloads: bool = False
    ended: bool = False

    def __init__(self, settings: FeedSettings) -> None:
        self.settings = settings

    def prepare(self, epoch: int) -> None:
        """Be the data of this epoch, where epochs differ: before it is read or compared with other data."""

    def reload(self, epoch: int) -> None:
        """Make the data of this epoch again, where ``reloads``: the run is restored."""

    @abstractmethod
    def steps(self, epoch: int, position: int = 0) -> Iterator[MicroBatches]:
        """The steps of an epoch from ``position`` on."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What distinguishes this data from other data, as plain data."""

    def state_dict(self) -> dict[str, Any]:
        """The state of a source that keeps its own position; else empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave, before ``steps``."""

    def samples_of(self, micro_batch: int) -> list[Any]:
        """The dataset indices in a micro-batch of the step under way, where they are known."""
        return []

    def step_samples(self) -> Sequence[Any]:
        """The dataset indices in the step under way, over all ranks, where every rank knows them."""
        return ()

    def use_micro_batches(self, size: int) -> None:
        """Cut the same steps into micro-batches of at most so many samples, from the next ``steps`` on.

        Raises:
            PacelineError: for batches that come ready made.
        """
        dataset = getattr(self.data, "dataset", None)
        raise PacelineError(
            'batch_size="auto" cuts steps into micro-batches, and these batches come ready made',
            code="batch-cannot-be-cut",
            got=type(self.data).__name__
            + (f" of a {type(dataset).__name__}" if dataset is not None else ""),
            fix="a DataLoader with a batch_size and a plain sampler, over a dataset with a length",
        )

    def close(self) -> None:
        """Stop worker processes that outlive an epoch."""

    def _moved(self, batch: Any, epoch: int, place: int) -> Any:
        """A batch, on the device.

        Args:
            batch: As it was read.
            epoch: The epoch that it is of, from 0.
            place: Its place in that epoch's data, as a number that no other batch has.
        """
        settings = self.settings
        if settings.hooked_transfer is not None:
            seed = derive(settings.seed, epoch, place, settings.dataloader_idx)
            return settings.hooked_transfer(batch, settings.dataloader_idx, seed)
        return batch if settings.transfer is None else settings.transfer(batch)


def read_isolated(batches: Iterator[Any], isolate: Callable[[], None] | None) -> Any:
    """The next batch; its draws (``isolate`` seeds them) leave no trace in this process."""
    faultpoint("data.read")
    if isolate is None:
        return next(batches)
    before = cpu_state()
    try:
        isolate()
        return next(batches)
    finally:
        set_cpu_state(before)


class NoFeed(Feed):
    """No data at all: a limit of 0 switches a phase off."""

    steps_per_epoch = 0

    def use_micro_batches(self, size: int) -> None:
        pass

    def steps(self, epoch: int, position: int = 0) -> Iterator[MicroBatches]:
        return iter(())

    def fingerprint(self) -> dict[str, Any]:
        return {}


def limited(batches: int, limit: int | float | None) -> int:
    """How many of ``batches`` a limit leaves; a part of them is at least one, unless it is 0.0."""
    if limit is None:
        return batches
    if isinstance(limit, float):
        return max(1, int(batches * limit + 1e-9)) if limit > 0 else 0
    return min(batches, limit)


def refuse_global_batch(settings: FeedSettings, why: str) -> None:
    """Batches that come ready are units and cannot be cut to a global batch size."""
    if settings.global_batch is not None:
        raise PacelineError(
            f"global_batch_size cannot be met: {why}",
            code="batch-cannot-be-cut",
            got=f"global_batch_size={settings.global_batch}",
            fix="leave global_batch_size out, or give a DataLoader with batch_size and a plain sampler",
        )
