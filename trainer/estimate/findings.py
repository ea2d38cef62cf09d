"""The values of an estimate: what it is of, and a row for each strategy."""

from __future__ import annotations

from dataclasses import dataclass

from ...strategies import RankBytes
from .step_time import Assumptions, StepTime


@dataclass(frozen=True)
class EstimateRow:
    """One strategy.

    Attributes:
        strategy: Its name, as ``Trainer(strategy=...)`` takes it, or the object to give.
        devices: On how many devices it computes.
        bytes: What a rank holds when it holds most.
        needed: Bytes that a device must have for it; on an accelerator with what its allocator reserves.
        fits: Whether that is within the limit.
        time: The modelled time of a step; None where the device's peak is not known.
        samples_per_second: Of all devices; None where ``time`` is.
        tokens_per_second: Of all devices; None where ``time`` is, and where the batch has no tokens.
    """

    strategy: str
    devices: int
    bytes: RankBytes
    needed: int
    fits: bool
    time: StepTime | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Findings:
    """What was estimated, for which devices.

    Attributes:
        module: The class of the module.
        parameters: How many the module has.
        precision: The run's, by name.
        device: The kind of device.
        devices: How many of them.
        per_node: How many of them a machine has.
        memory: Bytes of each device.
        limit: The part of ``memory`` that a run may take, from 0 to 1.
        samples: In a micro-batch of a rank.
        micro_batches: In a step.
        recomputes: Whether activations of the repeated blocks are computed again in backward.
        rows: One for each strategy.
        order: Strategies from the simplest to the one that needs the least memory.
        assumed: What the model of the time takes for granted; None without one.
    """

    module: str
    parameters: int
    precision: str
    device: str
    devices: int
    per_node: int
    memory: int
    limit: float
    samples: int
    micro_batches: int
    recomputes: bool
    rows: tuple[EstimateRow, ...]
    order: tuple[str, ...]
    assumed: Assumptions | None = None

    def row(self, strategy: str) -> EstimateRow:
        """The row of a strategy.

        Raises:
            KeyError: for one that was not estimated.
        """
        found = {row.strategy: row for row in self.rows}
        return found[strategy]

    @property
    def fits(self) -> tuple[str, ...]:
        """The strategies that fit; empty where none does."""
        return tuple(row.strategy for row in self.rows if row.fits)
