"""A port of this machine for the ranks of a test to meet at."""

from __future__ import annotations

import socket

_held: list[socket.socket] = []


def free_port() -> int:
    """One that nobody else is given before this process ends.

    A socket that is bound and does not listen keeps it; torch's store, which reuses addresses, still may
    listen there. Free ones are given out to every listener and connection of the machine.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    port: int = held.getsockname()[1]
    return port
