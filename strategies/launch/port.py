"""The port at which the ranks of a job on one machine meet."""

from __future__ import annotations

import socket


def hold_port() -> socket.socket:
    """A free port that nobody else is given: bound, but not listening, so that rank 0 may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held
