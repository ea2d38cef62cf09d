"""What the first fit of a process asks of the machine: forked processes have the answers."""

from __future__ import annotations

from paceline.trainer.run import environment_report
from paceline.trainer.utils import machine


def ask_once() -> None:
    """The versions of packages take the first fit of a process 40 ms, and so each rank that is forked."""
    machine.cgroup_limits()
    environment_report._versions()
    environment_report._torch()
