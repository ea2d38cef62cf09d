"""The environment of the processes that tests start: no launcher has set anything in it."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "NODE_RANK",
    "MASTER_",
    "PET_",
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "MPI_",
    "PACELINE_",
    "PYTEST_",
)
# No process with this variable outlives the module of tests whose mark it is; faults/conftest.py looks.
MODULE_MARK = "TEST_MODULE_MARK"


def clean_environment(threads: int | None = 1, **variables: object) -> dict[str, str]:
    """This process's environment without any launcher's variables, and ``variables``.

    Args:
        threads: For OpenMP; None leaves that number to each process.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if threads is None:
        kept.pop("OMP_NUM_THREADS", None)
    else:
        kept["OMP_NUM_THREADS"] = str(threads)
    return kept | {name: str(value) for name, value in variables.items()}


def rank_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What a launcher on one machine sets for a rank."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in place.items()}
