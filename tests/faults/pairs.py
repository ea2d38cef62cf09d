"""Runs a job's cases as two ranks each, forked from one process: that takes a tenth of new interpreters.

Used by jobs (``serve``) and by their tests (``run``).
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

free_port = runpy.run_path(str(Path(__file__).parents[1] / "ports.py"))["free_port"]
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "SLURM_", "PACELINE_")
SECONDS = 240


def environment() -> dict[str, str]:
    """What a process gets that is to know of no launcher."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return kept | {"OMP_NUM_THREADS": "1"}


def run(job: Path, folder: Path, cases: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """By name of the case: what each of two ranks returned, with "output", what it printed."""
    (folder / "cases").write_text(json.dumps(cases))
    with (folder / "output").open("w") as output:
        command = [sys.executable, str(job), str(folder)]
        done = subprocess.run(
            command, stdout=output, stderr=output, env=environment(), cwd=folder, timeout=SECONDS
        )
    assert done.returncode == 0, (folder / "output").read_text()[-4000:]
    return {name: [_found(folder / _file(name), rank) for rank in (0, 1)] for name in cases}


def _found(folder: Path, rank: int) -> dict[str, Any]:
    told = (folder / f"output-{rank}").read_text()
    path = folder / f"found-{rank}"
    assert path.exists(), told[-4000:]
    return json.loads(path.read_text()) | {"output": told}


def serve(work: Callable[..., dict[str, Any]], one_pair: bool) -> None:
    """Do a test's cases: ``work(folder, **case)`` on each of two ranks.

    Args:
        one_pair: The same two do all of them; else each case has its own, and may end them.
    """
    import torch._dynamo  # noqa: F401  (once, not in each of them: torch's optimizers import it)

    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases").read_text())
    for name in cases:
        (folder / _file(name)).mkdir()
    for part in [cases] if one_pair else [{name: case} for name, case in cases.items()]:
        port = str(free_port())
        children = [_forked(work, folder, part, rank, port) for rank in (0, 1)]
        for child in children:
            os.waitpid(child, 0)


def _file(name: str) -> str:
    return name.replace(" ", "-")


def _forked(
    work: Callable[..., dict[str, Any]], folder: Path, cases: dict[str, Any], rank: int, port: str
) -> int:
    child = os.fork()
    if child:
        return child
    about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ |= {k: str(v) for k, v in about.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    try:
        for name, case in cases.items():
            place = folder / _file(name)
            output = os.open(place / f"output-{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(place)
            (place / f"found-{rank}").write_text(json.dumps(work(place, **case)))
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)
    return 0
