"""The machines of a run, and the command that starts its ranks on each."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

PORT = 29500
"""torchrun's, where none is given."""
_LISTED = 16
"""Machines with a command each; for more there is one, in which the rank is to be filled in."""


@dataclass(frozen=True)
class Machines:
    """Where the ranks of a run are.

    Args:
        count: Machines.
        ranks: Ranks on each; None for all of its devices.
        address: The host where rank 0 is; None where it is not known yet.
        port: The port there.
        static: Machines are numbered from 0; else they find each other at the address.
        hostfile: A file of hosts for ``mpirun``, which starts all ranks.

    Example:
        >>> print(*Machines(2, 4, "gpu1", static=False).commands("train.py"))
        paceline launch --nnodes 2 --nproc 4 --rdzv-backend c10d --rdzv-endpoint gpu1:29500 train.py
    """

    count: int = 1
    ranks: int | None = None
    address: str | None = None
    port: int | None = None
    static: bool = True
    hostfile: str | None = None

    def commands(self, program: str) -> tuple[str, ...]:
        """The command for each machine, or one for all of them; empty for one machine.

        Args:
            program: What Python is to run: ``train.py``, or ``-m module``.
        """
        if self.count == 1 and self.hostfile is None:
            return ()
        address, port = shlex.quote(self.address or "HOST"), self.port or PORT
        if self.hostfile is not None:
            total = (self.ranks or 1) * self.count
            hosts = (
                f"mpirun --hostfile {shlex.quote(self.hostfile)} -n {total} --npernode {self.ranks or 1}"
            )
            return (f"{hosts} -x MASTER_ADDR={address} -x MASTER_PORT={port} python {program}",)
        start = f"paceline launch --nnodes {self.count} --nproc {self.ranks or 'auto'}"
        if not self.static:
            return (f"{start} --rdzv-backend c10d --rdzv-endpoint {address}:{port} {program}",)
        place = f"--master-addr {address} --master-port {port} {program}"
        ranks = range(self.count) if self.count <= _LISTED else ["RANK"]
        return tuple(f"{start} --node-rank {rank} {place}" for rank in ranks)
