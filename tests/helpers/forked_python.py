"""Stands in for Python under a launcher of a test: a script runs in a fork of the rank server.

``ranks.forked_python`` makes a program of this, which a launcher starts as it would start the interpreter.
It ends as the fork does, by the same signal or exit code; signals sent to it are passed on, and the fork is
killed when it is.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

_SECONDS = 400
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def main(python: str, address: str, arguments: list[str]) -> None:
    """Run ``[-u ...] [-m] SCRIPT ARGUMENT ...`` in a fork, and all else in Python itself."""
    given = [*itertools.dropwhile("-u".__eq__, arguments)]
    is_module = given[0] == "-m"
    script, *rest = given[1:] if is_module else given
    if script.startswith("-"):
        os.execv(python, [python, *arguments])
    order = {
        "script": script,
        "is_module": is_module,
        "function": None,
        "python": sys.argv[0],
        "arguments": rest,
        "ranks": 0,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "environments": [{}],
        "streams": [f"/proc/{os.getpid()}/fd/{number}" for number in (1, 2)],  # files and pipes
        "namespaces_of": os.getpid(),
        "seconds": _SECONDS,
        "after_a_failure": None,
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    connection.sendall(json.dumps(order).encode() + b"\n")
    answers = connection.makefile()
    (rank,) = json.loads(answers.readline())["pids"]

    def pass_on(number: int, frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, number)

    for name in _PASSED_ON:
        signal.signal(getattr(signal, name), pass_on)
    code, ended = None, {"left": ["its supervisor has ended"], "timed_out": False}
    for line in answers:
        found = json.loads(line)
        code = found.get("code", code)
        ended = found if "ended" in found else ended
    if ended["left"] or ended["timed_out"] or code is None:
        sys.exit(f"the fork for {script} did not end as it should: {ended}")
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
