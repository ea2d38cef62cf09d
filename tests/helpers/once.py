"""What each fit asks of the machine again, though it stays the same for the processes of the tests."""

from __future__ import annotations

import functools

from paceline.trainer.run import environment_report
from paceline.trainer.utils import machine


def ask_once() -> None:
    """A fit takes 50 ms; to read the limits of control groups twice, 6 of them.

    The versions of packages take the first fit of a process 40 ms, and so each rank that is forked.
    """
    machine.cgroup_limits = functools.cache(machine.cgroup_limits)
    machine.cgroup_limits()
    environment_report._versions()
    environment_report._torch()
