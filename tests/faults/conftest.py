"""No process may outlive the tests here, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.environment import MODULE_MARK

_SECONDS = 60.0  # for what ends by itself


def _left(mark: bytes) -> dict[int, str]:
    """The processes but this one that were started with this variable, and their command lines."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while it is looked at, or be another user's
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
            if state in "ZX" or int(place.name) == os.getpid():
                continue
            if mark in (place / "environ").read_bytes().split(b"\0"):
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(place.name)] = command
    return found


@pytest.fixture(autouse=True, scope="module")
def _nothing_survives():
    mark = uuid.uuid4().hex  # workers of one pytest run at once: each looks for its own
    os.environ[MODULE_MARK] = mark
    yield
    del os.environ[MODULE_MARK]
    deadline = time.monotonic() + _SECONDS
    while (left := _left(f"{MODULE_MARK}={mark}".encode())) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert not left, f"these outlived their tests: {left}"
