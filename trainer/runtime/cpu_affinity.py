"""Runs each rank on its own CPUs while a run lasts, for ``Trainer(numa_affinity=True)``.

Linux has an affinity for each thread, which new threads and processes inherit from the one that starts
them. So the threads that exist already are moved as well (torch's own, those of a process group), and
what was started meanwhile and is still there is moved back: threads, and processes such as a fork server.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import psutil
import torch

from ...strategies.launch.cpu_topology import (
    Cpus,
    Place,
    Topology,
    format_cpus,
    place_of_device,
    read_topology,
    share_of,
)
from ...strategies.machine.devices import pci_address
from ...strategies.ranks.collectives import Collectives

_REFUSALS = (psutil.Error, OSError, ValueError)
_printed: set[str] = set()
"""What has been reported on the console: each reason once per process."""


@contextmanager
def own_cpus(ranks: Collectives, device: torch.device, log_line: Callable[..., None]) -> Iterator[None]:
    """Inside, this rank runs on its CPUs, with no more of torch's threads. To be called on all ranks.

    Affinity and number of threads are restored afterwards, where nobody has changed them meanwhile.

    Args:
        ranks: All ranks: those of one machine share its CPUs.
        device: What this rank computes on.
        log_line: Takes a line for the console and the log; ``console=False``: for the log only.
    """
    topology = read_topology() if hasattr(psutil.Process, "cpu_affinity") else None
    place = _place(topology, device)
    share = share_of(ranks.rank, ranks.all_gather(place), topology or Topology({}, {}))
    with _pinned(share.cpus) as refusal:
        problem = share.problem or refusal
        with nullcontext() if problem else _threads_at_most(share.threads):
            mine = (format_cpus(share.cpus), torch.get_num_threads(), problem)
            _report(ranks.all_gather(mine), log_line)
            yield


def _place(topology: Topology | None, device: torch.device) -> Place:
    host = platform.node()
    if topology is None:
        return Place(host, problem=f"{platform.system()} lists no CPUs under /sys")
    allowed = Cpus(psutil.Process(threading.get_native_id()).cpu_affinity() or [])
    if device.type == "cpu":
        return Place(host, allowed)
    return place_of_device(topology, host, allowed, str(device), pci_address(device))


@contextmanager
def _pinned(cpus: Cpus) -> Iterator[str]:
    """Inside, the threads of this process that had the affinity of this one run on ``cpus``.

    Threads that somebody has pinned otherwise stay as they are.

    Returns:
        Why the system refused it; "" where it did not, and where there is nothing to do.
    """
    process, this = psutil.Process(), psutil.Process(threading.get_native_id())
    before = Cpus(this.cpu_affinity() or []) if cpus else cpus
    if cpus == before:
        yield ""
        return
    of_others = {thread.id for thread in process.threads()} - _threads_on(process, before)
    children = set(process.children(recursive=True))
    refusal = ""
    try:
        this.cpu_affinity(sorted(cpus))
    except _REFUSALS as error:
        refusal = str(error)
    if refusal:
        yield refusal
        return
    try:
        _move(_threads_on(process, before), cpus)
        yield ""
    finally:
        _move(_threads_on(process, cpus) - of_others, before)
        for child in set(process.children(recursive=True)) - children:
            _move(_threads_on(child, cpus), before)


def _threads_on(process: psutil.Process, cpus: Cpus) -> set[int]:
    """The threads of a process that have this affinity."""
    found = set()
    with suppress(psutil.Error):  # a process or a thread that has ended
        for thread in process.threads():
            with suppress(psutil.Error):
                if Cpus(psutil.Process(thread.id).cpu_affinity() or []) == cpus:
                    found.add(thread.id)
    return found


def _move(threads: set[int], cpus: Cpus) -> None:
    for thread in threads:
        with suppress(*_REFUSALS):  # it has ended
            psutil.Process(thread).cpu_affinity(sorted(cpus))


@contextmanager
def _threads_at_most(count: int) -> Iterator[None]:
    """Inside, torch computes with no more threads than this; a smaller number that was set is kept."""
    before = torch.get_num_threads()
    if before <= count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() == count:
            torch.set_num_threads(before)


def _report(everyone: list[tuple[str, int, str]], log_line: Callable[..., None]) -> None:
    """Log which ranks got which CPUs, on one line for all ranks that got the same ones."""
    for result in dict.fromkeys(everyone):
        cpus, threads, problem = result
        members = [str(rank) for rank, found in enumerate(everyone) if found == result]
        several = len(members) > 1
        who = f"rank{'s' if several else ''} {', '.join(members)}"
        if problem:
            text = f"warning: numa_affinity: {who} {'are' if several else 'is'} not pinned: {problem}"
        else:
            text = f"numa_affinity: {who} on CPUs {cpus}, threads of torch: {threads}"
        log_line(text, console=bool(problem) and text not in _printed)
        if problem:
            _printed.add(text)
