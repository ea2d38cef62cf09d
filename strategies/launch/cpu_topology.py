"""The CPUs of a machine, as /sys describes them, and which of them each rank gets. Nothing is set here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Cpus = frozenset[int]
_NONE: Cpus = Cpus()
SYS = Path("/sys")


@dataclass(frozen=True)
class Topology:
    """The CPUs of a machine.

    Args:
        nodes: The CPUs of each NUMA node that has any, by its number; empty where /sys has none.
        cores: The CPUs of one core (hyper-thread siblings), by each of its CPUs, where /sys has them.
    """

    nodes: dict[int, Cpus]
    cores: dict[int, Cpus]

    def among(self, allowed: Cpus) -> list[Cpus]:
        """The allowed CPUs by NUMA node; those of no node are one more."""
        known = _NONE.union(*self.nodes.values())
        found = [self.nodes[number] & allowed for number in sorted(self.nodes)] + [allowed - known]
        return [cpus for cpus in found if cpus]

    def parts(self, cpus: Cpus, count: int) -> list[Cpus]:
        """``cpus`` in so many even parts; cores stay whole where there are as many as parts."""
        cores = sorted({self.cores.get(cpu, Cpus([cpu])) & cpus for cpu in cpus}, key=min)
        if len(cores) < count:
            cores = [Cpus([cpu]) for core in cores for cpu in sorted(core)]
        return [_NONE.union(*part) for part in _even_parts(cores, count)]


@dataclass(frozen=True)
class Place:
    """Where a rank may run, as it reports it to the other ranks.

    Args:
        host: The name of its machine.
        allowed: The CPUs this process may use; a batch system or a container may have narrowed them.
        near: For a rank on an accelerator the allowed CPUs of its device's NUMA node; else None.
        problem: Why it cannot be pinned; "" where it can.
    """

    host: str
    allowed: Cpus = _NONE
    near: Cpus | None = None
    problem: str = ""


@dataclass(frozen=True)
class Share:
    """What a rank gets.

    Args:
        cpus: The CPUs it is to run on; empty where it is not to be pinned.
        ranks: How many ranks run on them.
        problem: Why it is not to be pinned.
    """

    cpus: Cpus = _NONE
    ranks: int = 1
    problem: str = ""

    @property
    def threads(self) -> int:
        """How many threads of a rank there are CPUs for."""
        return max(1, len(self.cpus) // self.ranks)


def read_topology(root: Path = SYS) -> Topology | None:
    """The topology of this machine; None where ``root`` does not describe its CPUs.

    Args:
        root: Where sysfs is mounted.
    """
    if not (root / "devices/system/cpu").is_dir():
        return None
    nodes, cores = {}, {}
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        if cpus := parse_cpus(_read(folder / "cpulist")):  # a node may have memory alone
            nodes[int(folder.name.removeprefix("node"))] = cpus
    for folder in (root / "devices/system/cpu").glob("cpu[0-9]*"):
        if siblings := parse_cpus(_read(folder / "topology/thread_siblings_list")):
            cores[int(folder.name.removeprefix("cpu"))] = siblings
    return Topology(nodes, cores)


def place_of_device(
    topology: Topology, host: str, allowed: Cpus, device: str, address: str | None, root: Path = SYS
) -> Place:
    """The place of a rank on an accelerator: the CPUs of the NUMA node that the device is attached to.

    Args:
        topology: Of this machine.
        host: Its name.
        allowed: The CPUs this process may use.
        device: The device, for messages.
        address: Its address on the PCI bus, ``0000:c1:00.0``; None where it is not known.
        root: Where sysfs is mounted.
    """
    if len(topology.nodes) < 2:  # all CPUs are as near
        return Place(host, allowed, allowed)
    text = _read(root / "bus/pci/devices" / address / "numa_node") if address else ""
    node = int(text) if re.fullmatch(r"\d+", text) else None  # -1: the firmware does not say
    if node not in topology.nodes:
        return Place(host, allowed, problem=f"the NUMA node of {device} is not known")
    near = topology.nodes[node] & allowed
    if near:
        return Place(host, allowed, near)
    problem = f"{device} is on NUMA node {node}, and this process may use CPUs {format_cpus(allowed)} only"
    return Place(host, allowed, problem=f"{problem}, which are on others")


def share_of(rank: int, places: Sequence[Place], topology: Topology) -> Share:
    """The CPUs of a rank.

    Ranks on accelerators share the CPUs of their node: they need them in bursts (a thread that launches
    kernels, loader workers, a checkpoint of rank 0), so fixed parts would be idle while another rank
    waits, and what is to be avoided is the way to another node's memory. Ranks that compute on CPUs get
    parts of their own: their threads are always busy, and would displace each other.

    Args:
        rank: Its number.
        places: Those of all ranks, in their order.
        topology: Of the machine of ``rank``.
    """
    mine = places[rank]
    if mine.problem:
        return Share(problem=mine.problem)
    here = [(n, place) for n, place in enumerate(places) if place.host == mine.host and not place.problem]
    if mine.near is not None:
        sharing = [n for n, place in here if place.near is not None and place.near & mine.near]
        return Share(mine.near, len(sharing))
    # A batch system may have given each rank CPUs already.
    alike = [n for n, place in here if place.near is None and place.allowed == mine.allowed]
    shares = deal(topology, mine.allowed, len(alike))
    if shares:
        return Share(shares[alike.index(rank)])
    some = "one CPU" if len(mine.allowed) == 1 else f"{len(mine.allowed)} CPUs"
    return Share(problem=f"there are {len(alike)} ranks for {some} ({format_cpus(mine.allowed)})")


def deal(topology: Topology, allowed: Cpus, ranks: int) -> list[Cpus]:
    """The CPUs of each of some ranks that compute on one machine's CPUs.

    Each rank gets whole NUMA nodes, or a part of one node. Where nodes have been narrowed to different
    sizes, the way is taken that gives the rank with the fewest CPUs the most.

    Args:
        topology: Of the machine.
        allowed: The CPUs to deal out.
        ranks: How many ranks there are.

    Returns:
        One set for each rank, no CPU in two of them; none at all where there are more ranks than CPUs.

    Example:
        >>> machine = Topology({0: frozenset({0, 1, 4, 5}), 1: frozenset({2, 3, 6, 7})}, {})
        >>> [format_cpus(cpus) for cpus in deal(machine, frozenset(range(8)), 4)]
        ['0-1', '4-5', '2-3', '6-7']
    """
    if ranks > len(allowed):
        return []
    nodes = topology.among(allowed)
    counts = [0] * len(nodes)
    for _ in range(ranks):  # the next rank goes where most CPUs are left for each
        counts[max(range(len(nodes)), key=lambda n: len(nodes[n]) / (counts[n] + 1))] += 1
    parts = [topology.parts(cpus, count) for cpus, count in zip(nodes, counts, strict=True)]
    ways = [[part for of_node in parts for part in of_node]]
    if ranks <= len(nodes):
        ways.insert(0, [_NONE.union(*part) for part in _even_parts(nodes, ranks)])
    return max(ways, key=lambda shares: min(map(len, shares)))


def parse_cpus(text: str) -> Cpus:
    """The CPUs of a list as Linux writes it: ``"0-3,8"``."""
    spans = [part.partition("-") for part in text.split(",") if part]
    return Cpus(cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1))


def format_cpus(cpus: Iterable[int]) -> str:
    """The inverse of ``parse_cpus``, for a list of any order."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _even_parts(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """``items`` in contiguous parts whose lengths differ by one at most."""
    return [items[i * len(items) // count : (i + 1) * len(items) // count] for i in range(count)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not there, or not for us to read
        return ""
