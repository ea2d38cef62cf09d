"""Runs a function for each of several things, each in a process of its own, a few at a time."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any


def in_forks(
    function: Callable[[Any], Any], things: Iterable[Any], at_once: int, deadline: float
) -> dict[Any, Any]:
    """What ``function`` returned for each thing, or the exception that ended it.

    Args:
        function: Called in a process that is forked from this one.
        things: Its arguments; they can be keys.
        at_once: How many processes there are.
        deadline: Seconds after which one is killed; its result is a ``TimeoutError``.
    """
    waiting, running, found = list(things)[::-1], {}, {}
    while waiting or running:
        while waiting and len(running) < at_once:
            thing = waiting.pop()
            running[_start(function, thing)] = (thing, time.monotonic() + deadline, bytearray())
        ready, _, _ = select.select([reader for reader, _ in running], [], [], 0.5)
        for key in list(running):
            reader, pid = key
            thing, until, data = running[key]
            part = os.read(reader, 1 << 16) if reader in ready else None
            if part:
                data += part
            elif part == b"" or time.monotonic() > until:
                if part is None:
                    os.kill(pid, signal.SIGKILL)
                os.close(reader)
                _, status = os.waitpid(pid, 0)
                died = TimeoutError(f"{deadline} s") if part is None else RuntimeError(f"ended: {status}")
                found[thing] = pickle.loads(bytes(data)) if part == b"" and data else died
                del running[key]
    return found


def _start(function: Callable[[Any], Any], thing: Any) -> tuple[int, int]:
    """The pipe and the number of a new process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    try:
        os.close(reader)
        try:
            result = function(thing)
        except BaseException as error:
            result = RuntimeError(f"{type(error).__name__}: {error}")
        with os.fdopen(writer, "wb") as out:
            pickle.dump(result, out)
    finally:
        os._exit(0)
