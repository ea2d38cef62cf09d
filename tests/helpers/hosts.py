"""Hosts on this machine: network namespaces with a name, an address and a link to each other.

They share the machine's files, as the hosts of a cluster share a file system. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import psutil

NAMES = ("host1", "host2")
_AS_HOST = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


class Hosts:
    """Two hosts, ``host1`` and ``host2``, until ``close``."""

    def __init__(self) -> None:
        self._prefix = f"paceline-{os.getpid()}-"
        self._folder = Path(tempfile.mkdtemp())
        self._names = self._folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"10.77.0.{n} {name}" for n, name in enumerate(NAMES, 1))]
        self._names.write_text("\n".join(lines) + "\n")
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            for name in NAMES:
                _ip("netns", "add", self._prefix + name)
                self._on(name, "link", "set", "lo", "up")
            ends = [("link", "add"), ("type", "veth", "peer")]
            _ip(
                *ends[0], "eth1", "netns", self._prefix + NAMES[0],
                *ends[1], "eth1", "netns", self._prefix + NAMES[1],
            )  # fmt: skip
            for number, name in enumerate(NAMES, 1):
                self._on(name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth1")
                self._on(name, "link", "set", "eth1", "up")
        except BaseException:
            self.close()
            raise

    def _on(self, name: str, *arguments: str) -> None:
        _ip("-n", self._prefix + name, *arguments)

    def start(
        self, name: str, command: Sequence[str], folder: Path, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Run a command on a host; what it prints is in ``<folder>/<name>.out``."""
        enter = ["ip", "netns", "exec", self._prefix + name, "unshare", "--uts", "--mount"]
        inside = ["sh", "-c", _AS_HOST, "sh", str(self._names), name, *command]
        with (folder / f"{name}.out").open("ab") as out:
            started = subprocess.Popen(
                [*enter, *inside],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        self._started.append(started)
        return started

    def cut(self) -> None:
        """Cut the link: what is sent is lost, without an error."""
        self._on(NAMES[1], "link", "set", "eth1", "down")

    def join(self) -> None:
        """Repair the link."""
        self._on(NAMES[1], "link", "set", "eth1", "up")

    def kill(self, name: str) -> None:
        """All processes of a host, at once."""
        while found := _ip("netns", "pids", self._prefix + name).split():
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            psutil.wait_procs(list(self._processes(found)), timeout=0.2)

    @staticmethod
    def _processes(pids: list[str]) -> Iterator[psutil.Process]:
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                yield psutil.Process(int(pid))

    def close(self) -> None:
        """End everything that runs there, and remove them."""
        for name in NAMES:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill(name)
                _ip("netns", "del", self._prefix + name)
        for started in self._started:
            started.wait(10)
        shutil.rmtree(self._folder)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@cache
def why_not() -> str:
    """Why there can be no hosts on this machine; "" where there can."""
    try:
        Hosts().close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}"
    return ""
