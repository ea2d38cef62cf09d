"""Why ranks did not finish a check: which one failed, was killed or hangs, and where."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from ..errors import cut
from ..testing.ranks import Report, printed
from .finding import split_error

_LONGEST = 250  # characters of an error
_LINES = 12  # of what a rank has printed
_TIMEOUT = "Timeout ("  # faulthandler's first line of a dump
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (\S+)', re.MULTILINE)
_WAITS = ("torch/distributed", "torch\\distributed")
_COLLATERAL = re.compile(r"Connection (closed|reset|refused)|recvValue failed|broken pipe|heartbeat", re.I)


def why_ended(
    reports: list[Report], folder: Path, section: str, seconds: float
) -> tuple[str, str, list[str]]:
    """What kept the ranks from finishing a section.

    Args:
        reports: Of all ranks.
        folder: Where they wrote what they printed.
        section: The first one that was not finished by all.
        seconds: How long a check may take.

    Returns:
        One line that names a rank, the cure that its error brings ("" for none), and the end of what that
        rank has printed.
    """
    stuck = {rank: report for rank, report in enumerate(reports) if report.section == section}
    # What fails because another rank is gone says so, or comes after it.
    failed = {r: (bool(_COLLATERAL.search(one.error)), one.at) for r, one in stuck.items() if one.error}
    killed = [rank for rank, one in stuck.items() if one.code is not None and one.code < 0]
    first = min(failed, key=failed.__getitem__, default=None)
    if killed and (first is None or failed[first][0]):
        name = signal.Signals(-(stuck[killed[0]].code or 0)).name
        return f"rank {killed[0]} was killed by {name}", _cure_of(name), _end(folder, killed[0])
    if first is not None and failed[first][0]:  # by the end of one that hangs, perhaps
        late = {
            r: one for r, one in stuck.items() if not one.error and _late(main_stack(printed(folder, r)))
        }
        if late:
            return _hang(late, folder, seconds)
    if first is not None:
        what, cure = split_error(stuck[first].error.removeprefix("PacelineError: "))
        return cut(f"rank {first}: {what}", _LONGEST), cure, _end(folder, first)
    return _hang(stuck, folder, seconds)


def _cure_of(name: str) -> str:
    if name == "SIGKILL":
        return "most likely too little memory: `dmesg | grep -i oom`, and the memory limit of the container"
    return "the native code of a library crashed: compare the versions of the machines (`paceline env`)"


def _hang(stuck: dict[int, Report], folder: Path, seconds: float) -> tuple[str, str, list[str]]:
    """The rank that the others wait for, from the stacks that each rank wrote at its deadline."""
    silent, late = [], {}
    for rank, report in stuck.items():
        stack = main_stack(printed(folder, rank))
        if not stack and report.code not in (None, 0):
            end = f"rank {rank} ended with exit code {report.code}"
            return end, "", _end(folder, rank)
        if not stack:
            silent.append(rank)
        elif _late(stack):
            late[rank] = stack
    cure = "see where that rank is, below; on a machine with much other work (`top`) a larger --timeout"
    if silent:
        rank = silent[0]
        cure = "it was stopped (`ps`: T), or is stuck in the kernel or a driver (`ps`: D; see `dmesg`)"
        return f"rank {rank} hangs: it did not answer at all for {seconds:g} s", cure, _end(folder, rank)
    if late:
        rank, stack = next(iter(late.items()))
        file, line, function = stack[0]
        text = f"rank {rank} hangs for {seconds:g} s in {function} ({file}:{line})"
        frames = [cut(f"  {file}:{line} in {function}", 160) for file, line, function in stack[:_LINES]]
        return text, cure, [f"the stack of rank {rank}, the innermost call first:", *frames]
    rank = min(stuck, default=0)
    text = f"all ranks wait for each other for {seconds:g} s"
    cure = (
        "a firewall or a wrong interface: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO says more"
    )
    return text, cure, _end(folder, rank)


def _late(stack: list[tuple[str, str, str]]) -> bool:
    """Whether a rank with these frames waits for no other one."""
    return bool(stack) and not any(part in frame[0] for frame in stack for part in _WAITS)


def main_stack(output: str) -> list[tuple[str, str, str]]:
    """File, line and function of the main thread's frames, the innermost first, of faulthandler's dump."""
    _, found, dump = output.rpartition(_TIMEOUT)
    threads = re.split(r"^(?:Current thread|Thread) .*$", dump, flags=re.MULTILINE) if found else []
    return _FRAME.findall(threads[-1]) if len(threads) > 1 else []


def _end(folder: Path, rank: int) -> list[str]:
    """The end of what a rank has printed."""
    lines = [line for line in printed(folder, rank).splitlines() if line.strip()]
    if not lines:
        return [f"rank {rank} has printed nothing"]
    return [f"the output of rank {rank} ends with:", *(cut(f"  {line}", 160) for line in lines[-_LINES:])]
