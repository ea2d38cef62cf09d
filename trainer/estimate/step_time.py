"""A model of a step's time: products at a part of the peak, the rest by memory's bandwidth, rings."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ...errors import PacelineError, nearest
from ...strategies import Description
from ...strategies.estimate.description import Collective, Layout
from ...strategies.estimate.model_bytes import ModelBytes
from .devices import Device
from .trace import Work


@dataclass(frozen=True)
class Assumptions:
    """What the model of a step's time takes for granted; bandwidths are of one direction.

    Args:
        peak: FLOP per second of the device in the run's precision, from its data sheet.
        attainable: The part of it that matrix products reach.
        bandwidth: Bytes per second of the device's memory.
        bandwidth_attainable: The part of it, and of the links, that is reached.
        link: Bytes per second between devices of a machine.
        network: Bytes per second between machines, for each device.
        host_link: Bytes per second between a device and its host.
        host_bandwidth: Bytes per second of the host's memory, for each device, where an optimizer updates
            there.
        latency: Seconds of each hop of a ring.
        launch: Seconds that the host needs to start an operation: a step is no faster than all of them.
        overlap: The part of communication that computation hides, where a strategy lets it run meanwhile.

    Example:
        >>> Assumptions(989e12, bandwidth=3.35e12, link=450e9, network=50e9, host_link=64e9).attainable
        0.65
    """

    peak: float
    attainable: float = 0.65
    bandwidth: float = 0.0
    bandwidth_attainable: float = 0.8
    link: float = 0.0
    network: float = 0.0
    host_link: float = 0.0
    host_bandwidth: float = 50e9
    latency: float = 5e-6
    launch: float = 5e-6
    overlap: float = 0.9

    def lines(self) -> list[str]:
        """All of it, for people."""
        return [
            f"{self.peak / 1e12:.4g} TFLOP/s at most, of which products reach {self.attainable:.0%}; "
            f"memory {self.bandwidth / 1e9:.4g} GB/s",
            f"links {self.link / 1e9:.4g} GB/s in a machine, {self.network / 1e9:.4g} between machines, "
            f"{self.host_link / 1e9:.4g} to the host, each for a device and one direction",
            f"memory and links reach {self.bandwidth_attainable:.0%} of that; {self.latency * 1e6:.3g} us "
            f"for a hop, {self.launch * 1e6:.3g} us to start an operation",
            f"computation hides {self.overlap:.0%} of the communication that may run beside it",
        ]


def assumptions(device: Device | None, dtype: torch.dtype, given: dict[str, float]) -> Assumptions | None:
    """The assumptions for a device, changed by the user's; None where no peak is known.

    Raises:
        PacelineError: for one that does not exist, or is no number above 0.
    """
    names = [part.name for part in fields(Assumptions)]
    for name, value in given.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        least = value >= 0 if number and name in ("latency", "launch", "overlap") else number and value > 0
        if name not in names or not least:
            raise PacelineError(
                "assume has a value that cannot be used",
                code="invalid-value",
                got=f"{name}={value!r}",
                allowed=f"numbers above 0 for {', '.join(names)}",
                meant=nearest(name, names) if name not in names else None,
            )
    peak = given.get("peak") or (device.peak(dtype) if device is not None else None)
    if peak is None:
        return None
    if device is None:
        missing = [n for n in ("bandwidth", "link", "network", "host_link") if n not in given]
        if missing:
            raise PacelineError(
                "a step's time on an unknown device needs more than its peak",
                code="missing-argument",
                got=f"assume without {', '.join(missing)}",
                fix='gpu="H100" takes them from the table of devices',
            )
        return Assumptions(**given)
    known = Assumptions(
        peak,
        bandwidth=device.bandwidth,
        link=device.link,
        network=device.network,
        host_link=device.host_link,
    )
    return replace(known, **given)


@dataclass(frozen=True)
class StepTime:
    """The modelled time of an optimizer step, in seconds.

    Attributes:
        computing: Seconds of forward and backward.
        updating: Seconds of the optimizer.
        communicating: Seconds of all collectives and copies, hidden or not.
        exposed: Seconds of these that nothing hides.
        mfu: The part of the peak that the step's FLOPs are, from 0 to 1.
    """

    computing: float
    updating: float
    communicating: float
    exposed: float
    mfu: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.computing + self.updating + self.exposed

    @property
    def communication_share(self) -> float:
        """The part of the step in which nothing but communication is done, from 0 to 1."""
        return self.exposed / self.seconds


def step_time(
    description: Description, model: ModelBytes, work: Work, layout: Layout, assumed: Assumptions
) -> StepTime:
    """The time of a step under a strategy.

    Args:
        description: The strategy's: what it communicates.
        model: The model and its step on one device.
        work: What the step computes.
        layout: The ranks.
        assumed: The device and its links.
    """
    bandwidth = assumed.bandwidth * assumed.bandwidth_attainable
    computing = work.flops / (assumed.peak * assumed.attainable) + work.moved / bandwidth
    computing = max(computing, work.operations * assumed.launch)
    memory = assumed.host_bandwidth if description.updates_on_host else bandwidth
    updating = work.updated * description.update_share(layout) / memory
    by_phase: dict[Any, float] = {None: 0.0, "forward": 0.0, "backward": 0.0}
    for collective in description.collectives_of_step(model, layout):
        by_phase[collective.phase] += collective_time(collective, layout, assumed)
    windows = {"forward": computing / 3, "backward": computing * 2 / 3}
    hidden = sum(min(assumed.overlap * by_phase[phase], window) for phase, window in windows.items())
    communicating = sum(by_phase.values())
    exposed = communicating - hidden
    seconds = computing + updating + exposed
    return StepTime(computing, updating, communicating, exposed, work.flops / (seconds * assumed.peak))


def collective_time(collective: Collective, layout: Layout, assumed: Assumptions) -> float:
    """Seconds of a ring: each rank sends (N - 1) / N of the whole, in an all-reduce twice."""
    if collective.operation in ("to_host", "from_host"):
        return collective.size / (assumed.host_link * assumed.bandwidth_attainable)
    ranks = collective.ranks or layout.ranks
    # As many rings as a machine has members, each through its own network port.
    rings = 1 if collective.between_nodes else layout.per_node
    leaves = collective.between_nodes or ranks > layout.per_node
    slowest = min(assumed.link, assumed.network * rings) if leaves else assumed.link
    passes = 2 if collective.operation == "all_reduce" else 1
    moved = passes * (ranks - 1) / ranks * collective.size
    return moved / (slowest * assumed.bandwidth_attainable) + (
        passes * (ranks - 1) * collective.times * assumed.latency
    )
