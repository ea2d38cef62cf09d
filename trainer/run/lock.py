"""One run to a folder: a lock that the system lets go when its process ends, however it ends."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from ...common.retries import retried
from ...errors import PacelineError
from ..utils.paths import writing

_held_here: set[Path] = set()


class FolderLock:
    """Holds run folders for this process; a second process, or Trainer, that wants one is refused.

    A record lock (``fcntl.lockf``): unlike others it is not inherited by forked loader workers, which may
    outlive a killed run for some seconds. Most network file systems keep them over hosts; where one
    has none, nothing is locked.
    """

    def __init__(self) -> None:
        self._files: dict[Path, IO[str]] = {}

    def take(self, folder: Path) -> None:
        """Hold ``folder``; one that is held already stays so.

        Raises:
            PacelineError: naming the host and process that hold it.
        """
        folder = folder.resolve()
        if folder in self._files:
            return
        if folder in _held_here:
            raise _held(folder, f"another Trainer of this process ({os.getpid()})")
        try:
            import fcntl
        except ImportError:
            return
        try:
            file = (folder / ".lock").open("a+")
        except OSError as error:
            raise _not_writable(folder, error) from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _held(folder, owner or "another process") from None
            return
        self._files[folder] = file  # from here on released with the others, whatever comes
        _held_here.add(folder)
        with writing("the run folder", folder, "give resume= a checkpoint's path and another run_dir"):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()

    def release(self) -> None:
        """Let all of them go."""
        for folder, file in self._files.items():
            _held_here.discard(folder)
            with suppress(OSError):  # what is written says who holds it, and matters no more
                file.close()
        self._files.clear()


def is_held(folder: Path) -> bool:
    """Whether a process of this machine, or of another one that shares its locks, holds a run's folder."""
    folder = folder.resolve()
    if folder in _held_here:  # to close the file would let the lock go
        return True
    try:
        import fcntl

        file = (folder / ".lock").open()
    except (ImportError, OSError):
        return False
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


def check_writable(folder: Path) -> None:
    """See that files can be made in a folder, where it is there.

    Raises:
        PacelineError: where they cannot.
    """

    def write() -> None:
        if folder.is_dir():
            descriptor, name = tempfile.mkstemp(prefix=".staging-", dir=folder)
            os.close(descriptor)
            os.unlink(name)

    try:
        retried(write)
    except OSError as error:
        if error.errno != errno.ENOSPC:  # a full disk is reported at a save, with the bytes it takes
            raise _not_writable(folder, error) from None


def _not_writable(folder: Path, error: OSError) -> PacelineError:
    return PacelineError(
        "the run folder cannot be written",
        code="cannot-write",
        where=str(folder),
        got=str(error),
        fix="run as the user who owns the run, or give resume= a checkpoint's path and another run_dir",
    )


def _held(folder: Path, owner: str) -> PacelineError:
    return PacelineError(
        "another run is active in this folder",
        code="already-running",
        where=str(folder),
        got=owner,
        fix="wait for it or end it; without resume=... a run gets a new folder",
    )
